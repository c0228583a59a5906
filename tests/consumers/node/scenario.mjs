/** The scenario of ../README.md. */

import { setTimeout as sleep } from "node:timers/promises";
import { ElizaError, Library } from "./eliza.mjs";
import { misuse } from "../javascript/misuse.mjs";

const PROMPT = "The capital of France is";
const SMILEYS = "🙂🙃🙂🙃🙂🙃🙂";
const LOOP = "one two three four one two three four one two";
const MIXED = "Hello, wörld! 🙂 日本語<|im_end|>";
const LONG = "word ".repeat(2000);
const NO_BUNDLE = "/no/such/bündle-🙂";

const transcript = {};
const cancelMs = {};

const [path, bundle, part] = process.argv.slice(2);
const library = new Library(path);
if (part === "misuse") {
  console.log(JSON.stringify(await misuse(library, bundle)));
  process.exit();
}
const { native } = library;

transcript.version = library.version;
transcript.probes = {
  llm_stream: native.eliza_inference_llm_stream_supported(),
  llm_mtp: native.eliza_inference_llm_mtp_supported(),
  llm_kv_quant: native.eliza_inference_llm_kv_quant_supported(),
  tokenize: native.eliza_inference_tokenize_supported(),
  tts_stream: native.eliza_inference_tts_stream_supported(),
  asr_stream: native.eliza_inference_asr_stream_supported(),
  vad: native.eliza_inference_vad_supported(),
  wakeword: native.eliza_inference_wakeword_supported(),
  speaker: native.eliza_inference_speaker_supported(),
  diariz: native.eliza_inference_diariz_supported(),
};
transcript.bad_bundle = await refusal(() => library.createContext(NO_BUNDLE));
native.eliza_inference_create(NO_BUNDLE, null);

const context = library.createContext(bundle);
const prompt = context.tokenize(PROMPT);
await withoutAStream();
await withStream({}, onOneStream);
await configuredStreams();
await selection();
await withStream({ maxTokens: 0 }, cancelled);
nulls();
console.log(JSON.stringify({ transcript, cancel_ms: cancelMs }));

async function withoutAStream() {
  transcript.voice = await failure(() => context.transcribe(new Float32Array(4), 16000, 64));
  const special = context.tokenize(MIXED, { parseSpecial: true });
  transcript.tokenize = { plain: context.tokenize(MIXED), special };
  const text = context.detokenize(special, { unparseSpecial: true, capacity: 256 });
  transcript.detokenize = { size: Buffer.byteLength(text), text };
  transcript.detokenize_small = await failure(() =>
    context.detokenize(special, { unparseSpecial: true, capacity: 4 })
  );
}

async function onOneStream(stream) {
  const smileys = context.tokenize(SMILEYS);
  const andThen = context.tokenize(" And then");
  transcript.first = await generation(stream, prompt);
  transcript.again = { reset: reset(stream), ...await generation(stream, prompt) };
  transcript.kept = {
    reset_keep: stream.resetKeep(3),
    ...await generation(stream, prompt.slice(3)),
  };
  transcript.continued = await generation(stream, andThen);
  transcript.bad_token = await failure(() => stream.prefill([999999]));
  transcript.no_token = await failure(() => stream.prefill([]));

  stream.reset();
  transcript.split = await generation(stream, smileys);
  stream.reset();
  transcript.tiny = await generation(stream, smileys, 1, 5);
  stream.reset();
  transcript.cramped = {
    ...await generation(stream, smileys, 16, 2),
    then: form(await stream.next()),
  };

  stream.reset();
  await firstSteps(stream);
  await stream.saveSlot("talk.slot");
  await withStream({}, async (second) => {
    await second.restoreSlot("talk.slot");
    transcript.saved = { save: 0, restore: 0, ...await generation(second, andThen) };
  });
  transcript.missing_slot = await failure(() => stream.restoreSlot("missing.slot"));
}

async function configuredStreams() {
  const sampler = { temperature: 0.8, topP: 0.9, topK: 40, repeatPenalty: 1.2 };
  transcript.sampled = await generationOf(PROMPT, sampler);
  transcript.grammar = await generationOf(PROMPT, { gbnfGrammar: 'root ::= " yes" | " no"' });
  const keyed = { slotId: 3, promptCacheKey: "talk" };
  transcript.keyed = [await generationOf(PROMPT, keyed), await generationOf(PROMPT, keyed)];

  const events = [];
  await context.setVerifier((event) => events.push(event));
  const drafting = { maxTokens: 40, draftMin: 1, draftMax: 4 };
  transcript.drafted = {
    ...await generationOf(LOOP, { ...drafting, cacheTypeK: "q8_0", cacheTypeV: "q8_0" }),
    events: events.map(({ accepted, rejectedFrom, rejectedTo, corrected }) => ({
      accepted,
      rejected_from: rejectedFrom,
      rejected_to: rejectedTo,
      corrected,
    })),
  };
  await context.setVerifier(null);

  transcript.failed_open = [
    await refusal(() => open({ cacheTypeK: "q3_9" })),
    await refusal(() => open({ cacheTypeV: "q3_9" })),
    await refusal(() => open({ mtpDrafterPath: "/no/such/drafter.gguf" })),
    await refusal(() => open({ gbnfGrammar: "root ::= (" })),
  ];
}

async function selection() {
  process.env.ELIZA_LLM_BACKEND = "no-such-runtime";
  const { opened, message } = await refusal(open);
  transcript.hard_select = { opened, message: message.split("\n")[0] };
  process.env.ELIZA_LLM_BACKEND = "LlamaCpp";
  transcript.selected = await generationOf(PROMPT);
  delete process.env.ELIZA_LLM_BACKEND;
}

async function cancelled(stream) {
  await stream.prefill(context.tokenize(LOOP));
  const { code } = await stopped("next", stream, async () => {
    while (true) await stream.next();
  });
  transcript.cancel_next = {
    code,
    next: await failure(() => stream.next()),
    prefill: await failure(() => stream.prefill(prompt)),
    reset: reset(stream),
    ...await firstSteps(stream),
  };

  stream.reset();
  const long = context.tokenize(LONG);
  transcript.cancel_prefill = {
    ...await stopped("prefill", stream, () => stream.prefill(long)),
    reset: reset(stream),
    ...await firstSteps(stream),
  };

  stream.reset();
  await stream.prefill(prompt);
  await context.close();
  transcript.outlived = { steps: await steps(stream, 4) };
}

/** The failure that `call` ends with: it runs on another thread, and this one cancels meanwhile. */
async function stopped(name, stream, call) {
  const outcome = failure(call).then((failed) => ({ failed, returnedAt: performance.now() }));
  await sleep(50);
  const cancelledAt = performance.now();
  stream.cancel();
  const { failed, returnedAt } = await outcome;
  cancelMs[name] = returnedAt - cancelledAt;
  return failed;
}

function nulls() {
  native.eliza_inference_destroy(null);
  native.eliza_inference_llm_stream_close(null);
  native.eliza_inference_asr_stream_close(null);
  native.eliza_inference_vad_close(null);
  native.eliza_inference_wakeword_close(null);
  native.eliza_inference_speaker_close(null);
  native.eliza_inference_diariz_close(null);
  native.eliza_inference_free_string(null);
  native.eliza_inference_free_tokens(null);
  transcript.nulls = true;
}

function open(config) {
  return context.openStream({ maxTokens: 16, slotId: -1, ...config });
}

async function withStream(config, use) {
  const stream = await open(config);
  try {
    return await use(stream);
  } finally {
    await stream.close();
  }
}

function reset(stream) {
  stream.reset();
  return 0;
}

function generationOf(text, config) {
  return withStream(config, (stream) => generation(stream, context.tokenize(text)));
}

async function generation(stream, tokens, tokensCap, textCap) {
  await stream.prefill(tokens);
  const steps = [];
  try {
    for await (const step of stream.steps(tokensCap, textCap)) steps.push(form(step));
  } catch (error) {
    steps.push(failed(error));
  }
  return { prefill: 0, steps };
}

async function firstSteps(stream) {
  await stream.prefill(prompt);
  return { steps: await steps(stream, 4) };
}

async function steps(stream, count) {
  const taken = [];
  while (taken.length < count) taken.push(form(await stream.next()));
  return taken;
}

function form({ done, ...step }) {
  return { code: Number(done), ...step };
}

function failed(error) {
  if (!(error instanceof ElizaError)) throw error;
  return { code: error.code, message: error.message };
}

async function failure(call) {
  try {
    await call();
  } catch (error) {
    return failed(error);
  }
  throw new Error("a call succeeded that must fail");
}

async function refusal(call) {
  return { opened: false, message: (await failure(call)).message };
}
