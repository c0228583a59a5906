/** The scenario of ../README.md. */

import type { Order } from "./canceller.ts";
import { dlopen } from "bun:ffi";
import {
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

const [path, bundle, part] = Bun.argv.slice(2);
const library = new Library(path);
if (part === "misuse") {
  console.log(JSON.stringify(await misuse(library, bundle, { blocks: true })));
  process.exit();
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
transcript.bad_bundle = refusal(() => library.createContext(NO_BUNDLE));
symbols.eliza_inference_create(NO_BUNDLE, null);

const context = library.createContext(bundle);
const prompt = context.tokenize(PROMPT);
withoutAStream();
onOneStream();
configuredStreams();
selection();
await cancelled();
nulls();
console.log(JSON.stringify({ transcript, cancel_ms: cancelMs }));

function withoutAStream(): void {
  transcript.voice = failure(() => context.transcribe(new Float32Array(4), 16000, 64));
  const special = context.tokenize(MIXED, { parseSpecial: true });
  transcript.tokenize = { plain: context.tokenize(MIXED), special };
  const text = context.detokenize(special, { unparseSpecial: true, capacity: 256 });
  transcript.detokenize = { size: Buffer.byteLength(text), text };
  transcript.detokenize_small = failure(() =>
    context.detokenize(special, { unparseSpecial: true, capacity: 4 })
  );
}

function onOneStream(): void {
  using stream = open();
  const smileys = context.tokenize(SMILEYS);
  const andThen = context.tokenize(" And then");
  transcript.first = generation(stream, prompt);
  transcript.again = { reset: reset(stream), ...generation(stream, prompt) };
  transcript.kept = { reset_keep: stream.resetKeep(3), ...generation(stream, prompt.slice(3)) };
  transcript.continued = generation(stream, andThen);
  transcript.bad_token = failure(() => stream.prefill([999999]));
  transcript.no_token = failure(() => stream.prefill([]));

  stream.reset();
  transcript.split = generation(stream, smileys);
  stream.reset();
  transcript.tiny = generation(stream, smileys, 1, 5);
  stream.reset();
  transcript.cramped = { ...generation(stream, smileys, 16, 2), then: form(stream.next()) };

  stream.reset();
  stream.prefill(prompt);
  steps(stream, 4);
  stream.saveSlot("talk.slot");
  using second = open();
  second.restoreSlot("talk.slot");
  transcript.saved = { save: 0, restore: 0, ...generation(second, andThen) };
  transcript.missing_slot = failure(() => stream.restoreSlot("missing.slot"));
}

function configuredStreams(): void {
  const sampler = { temperature: 0.8, topP: 0.9, topK: 40, repeatPenalty: 1.2 };
  transcript.sampled = generationOf(PROMPT, sampler);
  transcript.grammar = generationOf(PROMPT, { gbnfGrammar: 'root ::= " yes" | " no"' });
  const keyed = { slotId: 3, promptCacheKey: "talk" };
  transcript.keyed = [generationOf(PROMPT, keyed), generationOf(PROMPT, keyed)];

  const events: VerifierEvent[] = [];
  context.setVerifier((event) => events.push(event));
  const drafting = { maxTokens: 40, draftMin: 1, draftMax: 4 };
  transcript.drafted = {
    ...generationOf(LOOP, { ...drafting, cacheTypeK: "q8_0", cacheTypeV: "q8_0" }),
    events: events.map(({ accepted, rejectedFrom, rejectedTo, corrected }) => ({
      accepted,
      rejected_from: rejectedFrom,
      rejected_to: rejectedTo,
      corrected,
    })),
  };
  context.setVerifier(null);

  transcript.failed_open = [
    { cacheTypeK: "q3_9" },
    { cacheTypeV: "q3_9" },
    { mtpDrafterPath: "/no/such/drafter.gguf" },
    { gbnfGrammar: "root ::= (" },
  ].map((config) => refusal(() => open(config)));
}

function selection(): void {
  // Bun's process.env is a copy that getenv never sees. libc's own functions are found in the
  // library's handle, which reaches the libraries that it is linked with.
  const libc = dlopen(path, {
    setenv: { args: ["cstring", "cstring", "i32"], returns: "i32" },
    unsetenv: { args: ["cstring"], returns: "i32" },
  }).symbols;
  libc.setenv("ELIZA_LLM_BACKEND", "no-such-runtime", 1);
  const { opened, message } = refusal(open);
  transcript.hard_select = { opened, message: message.split("\n")[0] };
  libc.setenv("ELIZA_LLM_BACKEND", "LlamaCpp", 1);
  transcript.selected = generationOf(PROMPT);
  libc.unsetenv("ELIZA_LLM_BACKEND");
}

async function cancelled(): Promise<void> {
  using stream = open({ maxTokens: 0 });
  stream.prefill(context.tokenize(LOOP));
  const { code } = await stopped("next", stream, () => {
    while (true) stream.next();
  });
  transcript.cancel_next = {
    code,
    next: failure(() => stream.next()),
    prefill: failure(() => stream.prefill(prompt)),
    reset: reset(stream),
    ...firstSteps(stream),
  };

  stream.reset();
  const long = context.tokenize(LONG);
  transcript.cancel_prefill = {
    ...await stopped("prefill", stream, () => stream.prefill(long)),
    reset: reset(stream),
    ...firstSteps(stream),
  };

  stream.reset();
  stream.prefill(prompt);
  context.close();
  transcript.outlived = { steps: steps(stream, 4) };
}

/** The failure that `call` ends with, since a Worker cancels meanwhile. */
async function stopped(name: string, stream: Stream, call: () => void) {
  const begun = new Int32Array(new SharedArrayBuffer(4));
  const order: Order = { library: path, stream: stream.handle, begun, afterMs: 50 };
  const worker = new Worker(new URL("./canceller.ts", import.meta.url));
  const answer = () =>
    new Promise<unknown>((resolve, reject) => {
      worker.onmessage = ({ data }) => resolve(data);
      worker.onerror = ({ message }) => reject(new Error(message));
    });
  worker.postMessage(order);
  await answer(); // it runs by now: what follows leaves this thread no time to start it
  Atomics.store(begun, 0, 1);
  Atomics.notify(begun, 0);
  const outcome = failure(call);
  const returnedAt = performance.timeOrigin + performance.now();
  cancelMs[name] = returnedAt - Number(await answer());
  worker.terminate();
  return outcome;
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

function open(config: StreamConfig = {}): Stream {
  return context.openStream({ maxTokens: 16, slotId: -1, ...config });
}

function reset(stream: Stream): number {
  stream.reset();
  return 0;
}

function generationOf(text: string, config: StreamConfig = {}): Json {
  using stream = open(config);
  return generation(stream, context.tokenize(text));
}

function generation(stream: Stream, tokens: number[], tokensCap?: number, textCap?: number): Json {
  stream.prefill(tokens);
  const steps: Json[] = [];
  try {
    for (const step of stream.steps(tokensCap, textCap)) steps.push(form(step));
  } catch (error) {
    steps.push(failed(error));
  }
  return { prefill: 0, steps };
}

function firstSteps(stream: Stream): Json {
  stream.prefill(prompt);
  return { steps: steps(stream, 4) };
}

function steps(stream: Stream, count: number): Json[] {
  return Array.from({ length: count }, () => form(stream.next()));
}

function form({ done, ...step }: Step): Json {
  return { code: Number(done), ...step };
}

function failed(error: unknown) {
  if (!(error instanceof ElizaError)) throw error;
  return { code: error.code, message: error.message };
}

function failure(call: () => unknown) {
  try {
    call();
  } catch (error) {
    return failed(error);
  }
  throw new Error("a call succeeded that must fail");
}

function refusal(call: () => unknown) {
  return { opened: false, message: failure(call).message };
}
