/** The scenario of ../README.md. */

import {
  cString,
  ElizaError,
  Library,
  type Step,
  type Stream,
  type StreamConfig,
  type VerifierEvent,
} from "./eliza.ts";
import { misuse } from "../javascript/misuse.mjs";

const PROMPT = "The capital of France is";
const SMILEYS = "🙂🙃🙂🙃🙂🙃🙂";
const LOOP = "one two three four one two three four one two";
const MIXED = "Hello, wörld! 🙂 日本語<|im_end|>";
const LONG = "word ".repeat(2000);
const NO_BUNDLE = "/no/such/bündle-🙂";

type Json = Record<string, unknown>;
const transcript: Json = {};
const cancelMs: Record<string, number> = {};

const [path, bundle, part] = Deno.args;
const library = new Library(path);
if (part === "misuse") {
  console.log(JSON.stringify(await misuse(library, bundle)));
  Deno.exit();
}
const { symbols } = library;

transcript.version = library.version;
transcript.probes = {
  llm_stream: symbols.eliza_inference_llm_stream_supported(),
  llm_mtp: symbols.eliza_inference_llm_mtp_supported(),
  llm_kv_quant: symbols.eliza_inference_llm_kv_quant_supported(),
  tokenize: symbols.eliza_inference_tokenize_supported(),
  tts_stream: symbols.eliza_inference_tts_stream_supported(),
  asr_stream: symbols.eliza_inference_asr_stream_supported(),
  vad: symbols.eliza_inference_vad_supported(),
  wakeword: symbols.eliza_inference_wakeword_supported(),
  speaker: symbols.eliza_inference_speaker_supported(),
  diariz: symbols.eliza_inference_diariz_supported(),
};
transcript.bad_bundle = await refusal(() => library.createContext(NO_BUNDLE));
symbols.eliza_inference_create(cString(NO_BUNDLE), null);

const context = library.createContext(bundle);
const prompt = context.tokenize(PROMPT);
await withoutAStream();
await onOneStream();
await configuredStreams();
await selection();
await cancelled();
nulls();
console.log(JSON.stringify({ transcript, cancel_ms: cancelMs }));

async function withoutAStream(): Promise<void> {
  transcript.voice = await failure(() => context.transcribe(new Float32Array(4), 16000, 64));
  const special = context.tokenize(MIXED, { parseSpecial: true });
  transcript.tokenize = { plain: context.tokenize(MIXED), special };
  const text = context.detokenize(special, { unparseSpecial: true, capacity: 256 });
  transcript.detokenize = { size: new TextEncoder().encode(text).length, text };
  transcript.detokenize_small = await failure(() =>
    context.detokenize(special, { unparseSpecial: true, capacity: 4 })
  );
}

async function onOneStream(): Promise<void> {
  await using stream = await open();
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
  await using second = await open();
  await second.restoreSlot("talk.slot");
  transcript.saved = { save: 0, restore: 0, ...await generation(second, andThen) };
  transcript.missing_slot = await failure(() => stream.restoreSlot("missing.slot"));
}

async function configuredStreams(): Promise<void> {
  const sampler = { temperature: 0.8, topP: 0.9, topK: 40, repeatPenalty: 1.2 };
  transcript.sampled = await generationOf(PROMPT, sampler);
  transcript.grammar = await generationOf(PROMPT, { gbnfGrammar: 'root ::= " yes" | " no"' });
  const keyed = { slotId: 3, promptCacheKey: "talk" };
  transcript.keyed = [await generationOf(PROMPT, keyed), await generationOf(PROMPT, keyed)];

  const events: VerifierEvent[] = [];
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

async function selection(): Promise<void> {
  Deno.env.set("ELIZA_LLM_BACKEND", "no-such-runtime");
  const { opened, message } = await refusal(open);
  transcript.hard_select = { opened, message: message.split("\n")[0] };
  Deno.env.set("ELIZA_LLM_BACKEND", "LlamaCpp");
  transcript.selected = await generationOf(PROMPT);
  Deno.env.delete("ELIZA_LLM_BACKEND");
}

async function cancelled(): Promise<void> {
  await using stream = await open({ maxTokens: 0 });
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
async function stopped(name: string, stream: Stream, call: () => Promise<void>) {
  const outcome = failure(call).then((failed) => ({ failed, returnedAt: performance.now() }));
  await new Promise((resolve) => setTimeout(resolve, 50));
  const cancelledAt = performance.now();
  stream.cancel();
  const { failed, returnedAt } = await outcome;
  cancelMs[name] = returnedAt - cancelledAt;
  return failed;
}

function nulls(): void {
  symbols.eliza_inference_destroy(null);
  symbols.eliza_inference_llm_stream_close(null);
  symbols.eliza_inference_asr_stream_close(null);
  symbols.eliza_inference_vad_close(null);
  symbols.eliza_inference_wakeword_close(null);
  symbols.eliza_inference_speaker_close(null);
  symbols.eliza_inference_diariz_close(null);
  symbols.eliza_inference_free_string(null);
  symbols.eliza_inference_free_tokens(null);
  transcript.nulls = true;
}

function open(config: StreamConfig = {}): Promise<Stream> {
  return context.openStream({ maxTokens: 16, slotId: -1, ...config });
}

function reset(stream: Stream): number {
  stream.reset();
  return 0;
}

async function generationOf(text: string, config: StreamConfig = {}): Promise<Json> {
  await using stream = await open(config);
  return await generation(stream, context.tokenize(text));
}

async function generation(
  stream: Stream,
  tokens: number[],
  tokensCap?: number,
  textCap?: number,
): Promise<Json> {
  await stream.prefill(tokens);
  const steps: Json[] = [];
  try {
    for await (const step of stream.steps(tokensCap, textCap)) steps.push(form(step));
  } catch (error) {
    steps.push(failed(error));
  }
  return { prefill: 0, steps };
}

async function firstSteps(stream: Stream): Promise<Json> {
  await stream.prefill(prompt);
  return { steps: await steps(stream, 4) };
}

async function steps(stream: Stream, count: number): Promise<Json[]> {
  const taken: Json[] = [];
  while (taken.length < count) taken.push(form(await stream.next()));
  return taken;
}

function form({ done, ...step }: Step): Json {
  return { code: Number(done), ...step };
}

function failed(error: unknown) {
  if (!(error instanceof ElizaError)) throw error;
  return { code: error.code, message: error.message };
}

async function failure(call: () => unknown) {
  try {
    await call();
  } catch (error) {
    return failed(error);
  }
  throw new Error("a call succeeded that must fail");
}

async function refusal(call: () => unknown) {
  return { opened: false, message: (await failure(call)).message };
}
