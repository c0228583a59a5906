/**
 * The misuse of ../README.md, for Node, Bun and Deno: what callers may get wrong, and what they are
 * told. Their bindings differ in what is a promise; here everything is awaited.
 */

const PROMPT = "The capital of France is";
const LOOP = "one two three four one two three four one two";
const LONG = "word ".repeat(2000);
const DRAFTING = {
  maxTokens: 40,
  draftMin: 1,
  draftMax: 4,
  cacheTypeK: "q8_0",
  cacheTypeV: "q8_0",
};
const NUL = "a\0b";
const NOT_INT32 = [2 ** 31, -(2 ** 31) - 1, 2 ** 53, NaN, Infinity, 0.5, "1", 1n, true, null];
const NOT_TEXT = [7, true, null, {}];

/** `blocks` says that a call ends before another can begin. */
export async function misuse(library, bundle, { blocks = false } = {}) {
  const context = library.createContext(bundle);
  const stream = await context.openStream();
  await stream.prefill(context.tokenize(PROMPT));
  const played = {
    nul: await nulInTexts(library, context, stream),
    whole_text: context.detokenize(context.tokenize(NUL)),
    null: await nulls(library, context, stream),
    number: await wrongNumbers(context, stream),
    type: await wrongTypes(library, context, stream),
    capacity: await negativeCapacities(context, stream),
  };
  await stream.close();
  played.busy = await busyStream(context);
  played.closed_inside = await closedInside(context);
  if (!blocks) played.closing = await closedWhilePrefilling(context);
  played.closed = await closedStream(context);
  return { ...played, ...await closedContext(context) };
}

async function nulInTexts(library, context, stream) {
  return {
    bundle: await refused("bundle", () => library.createContext(NUL)),
    prompt_cache_key: await refusedIn(context, "promptCacheKey", [NUL]),
    mtp_drafter_path: await refusedIn(context, "mtpDrafterPath", [NUL]),
    gbnf_grammar: await refusedIn(context, "gbnfGrammar", [NUL]),
    cache_type_k: await refusedIn(context, "cacheTypeK", [NUL]),
    cache_type_v: await refusedIn(context, "cacheTypeV", [NUL]),
    save_slot: await refused("path", () => stream.saveSlot(NUL)),
    restore_slot: await refused("path", () => stream.restoreSlot(NUL)),
  };
}

async function nulls(library, context, stream) {
  return {
    bundle: await refused("bundle", () => library.createContext(null)),
    text: await refused("text", () => context.tokenize(null)),
    ids: await refused("tokens", () => context.detokenize(null)),
    pcm: await refused("pcm", () => context.transcribe(null, 16000, 64)),
    config: await refused("config", () => context.openStream(null)),
    tokens: await refused("tokens", () => stream.prefill(null)),
    save_slot: await refused("path", () => stream.saveSlot(null)),
    restore_slot: await refused("path", () => stream.restoreSlot(null)),
  };
}

async function wrongNumbers(context, stream) {
  const pcm = new Float32Array(4);
  return {
    max_tokens: await refusedIn(context, "maxTokens", NOT_INT32),
    slot_id: await refusedIn(context, "slotId", NOT_INT32),
    reset_keep: await refusedAll("count", NOT_INT32, (count) => stream.resetKeep(count)),
    tokens: await refusedAll("tokens[1]", NOT_INT32, (id) => stream.prefill([1, id])),
    ids: await refusedAll("tokens[1]", NOT_INT32, (id) => context.detokenize([1, id])),
    sample_rate: await refusedAll(
      "sampleRate",
      NOT_INT32,
      (rate) => context.transcribe(pcm, rate, 64),
    ),
    next_tokens: await refusedAll("tokensCap", NOT_INT32, (cap) => stream.next(cap, 256)),
    next_text: await refusedAll("textCap", NOT_INT32, (cap) => stream.next(16, cap)),
  };
}

async function wrongTypes(library, context, stream) {
  return {
    bundle: await refusedAll("bundle", NOT_TEXT, (path) => library.createContext(path)),
    text: await refusedAll("text", NOT_TEXT, (text) => context.tokenize(text)),
    gbnf_grammar: await refusedIn(context, "gbnfGrammar", NOT_TEXT),
    temperature: await refusedIn(context, "temperature", ["0.8", true, null]),
    no_field: await refusedIn(context, "max_tokens", [16]),
    tokens: await refused("tokens", () => stream.prefill("The capital")),
    pcm: await refused("pcm", () => context.transcribe([0, 0], 16000, 64)),
    save_slot: await refusedAll("path", NOT_TEXT, (path) => stream.saveSlot(path)),
  };
}

async function negativeCapacities(context, stream) {
  const pcm = new Float32Array(4);
  return {
    next_tokens: await refused("tokensCap", () => stream.next(-1, 256)),
    next_text: await refused("textCap", () => stream.next(16, -1)),
    detokenize: await refused("capacity", () => context.detokenize([1], { capacity: -1 })),
    transcribe: await refused("capacity", () => context.transcribe(pcm, 16000, -1)),
  };
}

/** Used by the verifier, which runs on this thread, inside `next`. */
async function busyStream(context) {
  const stream = await context.openStream(DRAFTING);
  let outcomes;
  await context.setVerifier(() => outcomes ??= everyCall(stream));
  await stream.prefill(context.tokenize(LOOP));
  for await (const _ of stream.steps());
  await context.setVerifier(null);
  await stream.close();
  return await outcomes;
}

async function closedInside(context) {
  const stream = await context.openStream(DRAFTING);
  let closing;
  await context.setVerifier(() => closing = stream.close());
  await stream.prefill(context.tokenize(LOOP));
  const ended = await outcome(async () => {
    for await (const _ of stream.steps());
  });
  await closing;
  await context.setVerifier(null);
  return ended;
}

async function closedWhilePrefilling(context) {
  const stream = await context.openStream();
  const prefill = outcome(() => stream.prefill(context.tokenize(LONG)));
  await stream.close();
  return await prefill;
}

async function closedStream(context) {
  const stream = await context.openStream();
  await stream.close();
  const outcomes = await everyCall(stream);
  stream.cancel();
  await stream.close();
  return outcomes;
}

/** Every call is made before this function waits for the first. */
async function everyCall(stream) {
  const outcomes = {
    prefill: outcome(() => stream.prefill([1])),
    next: outcome(() => stream.next()),
    save_slot: outcome(() => stream.saveSlot("unused.slot")),
    restore_slot: outcome(() => stream.restoreSlot("unused.slot")),
    reset: outcome(() => stream.reset()),
    reset_keep: outcome(() => stream.resetKeep(0)),
  };
  const waited = Object.entries(outcomes).map(async ([name, made]) => [name, await made]);
  return Object.fromEntries(await Promise.all(waited));
}

/** Closed while streams are being opened: first those are there, and usable, then it is closed. */
async function closedContext(context) {
  const opening = Array.from({ length: 32 }, () => context.openStream());
  const closing = context.close();
  const first = await Promise.race([
    ...opening.map((stream) => Promise.resolve(stream).then(() => "accepted")),
    Promise.resolve(closing).then(() => "closed too early"),
  ]);
  for (const stream of await Promise.all(opening)) {
    await stream.prefill([1]);
    await stream.close();
  }
  await closing;
  await context.close();
  const pcm = new Float32Array(4);
  return {
    pending: first,
    closed_context: {
      tokenize: await outcome(() => context.tokenize(PROMPT)),
      detokenize: await outcome(() => context.detokenize([1])),
      transcribe: await outcome(() => context.transcribe(pcm, 16000, 64)),
      open: await outcome(() => context.openStream()),
      set_verifier: await outcome(() => context.setVerifier(null)),
    },
  };
}

/** The outcome of a config with each of these values in one field. */
function refusedIn(context, field, values) {
  return refusedAll(field, values, (value) => context.openStream({ [field]: value }));
}

async function refusedAll(argument, values, call) {
  for (const value of values) {
    const outcome = await refused(argument, () => call(value));
    if (outcome !== "refused") return `${String(value)}: ${outcome}`;
  }
  return "refused";
}

/** The outcome of a call with a wrong argument, which the message has to name. */
async function refused(argument, call) {
  try {
    await call();
  } catch (error) {
    const known = error instanceof TypeError || error instanceof RangeError;
    return known && error.message.includes(argument) ? "refused" : String(error);
  }
  return "accepted";
}

async function outcome(call) {
  try {
    await call();
  } catch (error) {
    if (error.code === -7) return "cancelled";
    return /^the \w+ is (busy|closed)$/.exec(error.message)?.[1] ?? String(error);
  }
  return "accepted";
}
