/** libelizainference for Node: contexts and streams over koffi. */

import { promisify } from "node:util";
import koffi from "koffi";

// koffi calls on stacks of its own. Of the 128 KiB that an asynchronous call gets by default, a
// prefill needs more than half; this is what a synchronous call gets.
koffi.config({ async_stack_size: 2 * 1024 * 1024 });

koffi.opaque("EliInferenceContext");
koffi.opaque("EliLlmStream");

// The header's fields in the header's order. What a config leaves out is 0 or NULL.
const CONFIG = koffi.struct("eliza_llm_stream_config_t", {
  maxTokens: "int32_t",
  temperature: "float",
  topP: "float",
  topK: "int32_t",
  repeatPenalty: "float",
  slotId: "int32_t",
  promptCacheKey: "const char *",
  draftMin: "int32_t",
  draftMax: "int32_t",
  mtpDrafterPath: "const char *",
  gbnfGrammar: "const char *",
  disableThinking: "int32_t",
  nGpuLayers: "int32_t",
  cacheTypeK: "const char *",
  cacheTypeV: "const char *",
});

koffi.struct("EliVerifierEvent", {
  accepted: "const int *",
  acceptedCount: "size_t",
  rejectedFrom: "int",
  rejectedTo: "int",
  corrected: "const int *",
  correctedCount: "size_t",
});
koffi.proto("void eliza_verifier_cb(const EliVerifierEvent *event, void *user_data)");

// As in the header, but for what is freed: koffi would make a string of a `char **` and forget the
// address.
const PROTOTYPES = [
  "const char *eliza_inference_abi_version()",
  `EliInferenceContext *eliza_inference_create(
     const char *bundle_dir, _Out_ void **out_error)`,
  "void eliza_inference_destroy(EliInferenceContext *ctx)",
  "void eliza_inference_free_string(void *str)",
  "void eliza_inference_free_tokens(void *tokens)",

  "int eliza_inference_llm_stream_supported()",
  "int eliza_inference_llm_mtp_supported()",
  "int eliza_inference_llm_kv_quant_supported()",
  "int eliza_inference_tokenize_supported()",
  "int eliza_inference_tts_stream_supported()",
  "int eliza_inference_asr_stream_supported()",
  "int eliza_inference_vad_supported()",
  "int eliza_inference_wakeword_supported()",
  "int eliza_inference_speaker_supported()",
  "int eliza_inference_diariz_supported()",

  `EliLlmStream *eliza_inference_llm_stream_open(
     EliInferenceContext *ctx, const eliza_llm_stream_config_t *cfg, _Out_ void **out_error)`,
  `int eliza_inference_llm_stream_prefill(
     EliLlmStream *stream, const int32_t *token_ids, size_t num_tokens, _Out_ void **out_error)`,
  `int eliza_inference_llm_stream_next(
     EliLlmStream *stream, _Out_ int32_t *tokens_out, size_t tokens_cap,
     _Out_ size_t *num_tokens_out, _Out_ uint8_t *text_out, size_t text_cap,
     _Out_ int32_t *drafter_drafted_out, _Out_ int32_t *drafter_accepted_out,
     _Out_ void **out_error)`,
  "int eliza_inference_llm_stream_cancel(EliLlmStream *stream)",
  `int eliza_inference_llm_stream_save_slot(
     EliLlmStream *stream, const char *filename, _Out_ void **out_error)`,
  `int eliza_inference_llm_stream_restore_slot(
     EliLlmStream *stream, const char *filename, _Out_ void **out_error)`,
  "int eliza_inference_llm_stream_reset(EliLlmStream *stream)",
  "int eliza_inference_llm_stream_reset_keep(EliLlmStream *stream, int32_t n_keep)",
  "void eliza_inference_llm_stream_close(EliLlmStream *stream)",
  `int eliza_inference_set_verifier_callback(
     EliInferenceContext *ctx, eliza_verifier_cb *cb, void *user_data, _Out_ void **out_error)`,

  `int eliza_inference_tokenize(
     EliInferenceContext *ctx, const char *text, size_t text_len, int add_special,
     int parse_special, _Out_ void **out_tokens, _Out_ size_t *out_n, _Out_ void **out_error)`,
  `int eliza_inference_detokenize(
     EliInferenceContext *ctx, const int *tokens, size_t n_tokens, int remove_special,
     int unparse_special, _Out_ uint8_t *out_text, size_t max_text_bytes, _Out_ void **out_error)`,

  `int eliza_inference_asr_transcribe(
     EliInferenceContext *ctx, const float *pcm, size_t n_samples, int sample_rate_hz,
     _Out_ uint8_t *out_text, size_t max_text_bytes, _Out_ void **out_error)`,
  "void eliza_inference_asr_stream_close(void *stream)",
  "void eliza_inference_vad_close(void *vad)",
  "void eliza_inference_wakeword_close(void *wake)",
  "void eliza_inference_speaker_close(void *speaker)",
  "void eliza_inference_diariz_close(void *diariz)",
];

/** What the library reports; `code` is undefined where a function returned NULL. */
export class ElizaError extends Error {
  name = "ElizaError";

  constructor(message, code) {
    super(message);
    this.code = code;
  }
}

export class Library {
  /** The functions by their names in C. */
  native;

  constructor(path) {
    const library = koffi.load(path);
    const functions = PROTOTYPES.map((prototype) => library.func(prototype));
    this.native = Object.fromEntries(functions.map((native) => [native.info.name, native]));
  }

  get version() {
    return this.native.eliza_inference_abi_version();
  }

  createContext(bundle) {
    const create = this.native.eliza_inference_create;
    return new Context(this, this.call(create, checkText("bundle", bundle)));
  }

  /** Calls a function whose last parameter is `out_error`; NULL or a negative code is thrown. */
  call(native, ...args) {
    const error = [null];
    return this.#checked(native(...args, error), error);
  }

  /** The same on a thread of libuv's pool, while the event loop goes on. */
  async callAsync(native, ...args) {
    const error = [null];
    return this.#checked(await promisify(native.async)(...args, error), error);
  }

  #checked(result, [text]) {
    if (result !== null && result >= 0) return result;
    const message = koffi.decode.string(text);
    this.native.eliza_inference_free_string(text);
    throw new ElizaError(message, result ?? undefined);
  }
}

/** A bundle and its models. Its streams may outlive it. */
export class Context {
  #library;
  #handle;
  #callback = null;
  #running = new Set();

  constructor(library, handle) {
    this.#library = library;
    this.#handle = handle;
  }

  get handle() {
    if (this.#handle === null) throw new Error("the context is closed");
    return this.#handle;
  }

  /** Closes the context after the calls on it that run. */
  async close() {
    const handle = this.#handle;
    this.#handle = null; // from here on every other call is refused
    await Promise.allSettled(this.#running);
    if (handle !== null && this.#callback !== null) await this.#replaceVerifier(handle, null);
    this.#library.native.eliza_inference_destroy(handle);
  }

  [Symbol.asyncDispose]() {
    return this.close();
  }

  /** Loads the model if it is the first to need it. See the struct above for `config`. */
  async openStream(config = {}) {
    const open = this.#library.native.eliza_inference_llm_stream_open;
    const opening = this.#library.callAsync(open, this.handle, completeConfig(config));
    return new Stream(this.#library, await this.#untilDone(opening));
  }

  tokenize(text, { addSpecial = true, parseSpecial = false } = {}) {
    checkType("text", text, "string");
    const { native } = this.#library;
    const array = [null];
    const count = [0];
    this.#library.call(
      native.eliza_inference_tokenize,
      this.handle,
      text, // whole, even with a NUL in it: its length goes along
      Buffer.byteLength(text),
      Number(addSpecial),
      Number(parseSpecial),
      array,
      count,
    );
    const tokens = copyInts(array[0], count[0]);
    native.eliza_inference_free_tokens(array[0]);
    return tokens;
  }

  /** `capacity` is the room for the text in bytes, terminator included. */
  detokenize(tokens, { removeSpecial = false, unparseSpecial = false, capacity } = {}) {
    checkTokens(tokens);
    const text = Buffer.alloc(checkCapacity("capacity", capacity ?? 16 * tokens.length + 64));
    const size = this.#library.call(
      this.#library.native.eliza_inference_detokenize,
      this.handle,
      tokens,
      tokens.length,
      Number(removeSpecial),
      Number(unparseSpecial),
      text,
      text.length,
    );
    return text.toString("utf8", 0, size);
  }

  /** What is said in mono PCM in [-1, 1]. */
  transcribe(pcm, sampleRate, capacity) {
    if (!(pcm instanceof Float32Array)) throw new TypeError("pcm is no Float32Array");
    checkInteger("sampleRate", sampleRate);
    const text = Buffer.alloc(checkCapacity("capacity", capacity));
    const size = this.#library.call(
      this.#library.native.eliza_inference_asr_transcribe,
      this.handle,
      pcm,
      pcm.length,
      sampleRate,
      text,
      text.length,
    );
    return text.toString("utf8", 0, size);
  }

  /**
   * Sets the callback of all streams of the context; null clears it.
   *
   * It is called on the main thread, for which the generating thread waits. This call in turn waits
   * for the generating thread, so it is asynchronous as well.
   */
  async setVerifier(verified) {
    await this.#untilDone(this.#replaceVerifier(this.handle, verified));
  }

  async #replaceVerifier(handle, verified) {
    const callback = verified && koffi.register(
      (event) => verified(readEvent(event)),
      "eliza_verifier_cb *",
    );
    const set = this.#library.native.eliza_inference_set_verifier_callback;
    await this.#library.callAsync(set, handle, callback, null);
    if (this.#callback !== null) koffi.unregister(this.#callback);
    this.#callback = callback;
  }

  /** Awaits a call that `close` has to wait for. */
  async #untilDone(call) {
    this.#running.add(call);
    try {
      return await call;
    } finally {
      this.#running.delete(call);
    }
  }
}

/** One sequence of tokens. Calls that take long run on another thread, one at a time. */
export class Stream {
  #library;
  #handle;
  #running = null;

  constructor(library, handle) {
    this.#library = library;
    this.#handle = handle;
  }

  get handle() {
    if (this.#handle === null) throw new Error("the stream is closed");
    if (this.#running !== null) throw new Error("the stream is busy");
    return this.#handle;
  }

  /** Cancels the call that runs, if any, and closes the stream after it. */
  async close() {
    const handle = this.#handle;
    this.#handle = null; // from here on every other call is refused
    if (this.#running !== null) {
      this.#library.native.eliza_inference_llm_stream_cancel(handle);
      await this.#running.catch(() => {});
    }
    this.#library.native.eliza_inference_llm_stream_close(handle);
  }

  [Symbol.asyncDispose]() {
    return this.close();
  }

  /** Stops the call that runs, and refuses all others until a reset. */
  cancel() {
    if (this.#handle === null) return; // there is nothing left to stop
    this.#library.native.eliza_inference_llm_stream_cancel(this.#handle);
  }

  async prefill(tokens) {
    checkTokens(tokens);
    const { native } = this.#library;
    await this.#run(native.eliza_inference_llm_stream_prefill, tokens, tokens.length);
  }

  /** At most one model step, with room for so many tokens and bytes of text. */
  async next(tokensCap = 16, textCap = 256) {
    const tokens = new Array(checkCapacity("tokensCap", tokensCap)).fill(0);
    const count = [0];
    const text = Buffer.alloc(checkCapacity("textCap", textCap));
    const drafted = [0];
    const accepted = [0];
    const result = await this.#run(
      this.#library.native.eliza_inference_llm_stream_next,
      tokens,
      tokensCap,
      count,
      text,
      textCap,
      drafted,
      accepted,
    );
    return {
      done: result === 1,
      tokens: tokens.slice(0, count[0]),
      text: text.toString("utf8", 0, text.indexOf(0)),
      drafted: drafted[0],
      accepted: accepted[0],
    };
  }

  /** The steps of a generation, the final one included. */
  async *steps(tokensCap, textCap) {
    let step;
    do {
      step = await this.next(tokensCap, textCap);
      yield step;
    } while (!step.done);
  }

  async saveSlot(path) {
    const save = this.#library.native.eliza_inference_llm_stream_save_slot;
    await this.#run(save, checkText("path", path));
  }

  async restoreSlot(path) {
    const restore = this.#library.native.eliza_inference_llm_stream_restore_slot;
    await this.#run(restore, checkText("path", path));
  }

  reset() {
    const { native } = this.#library;
    succeeded("reset", native.eliza_inference_llm_stream_reset(this.handle));
  }

  /** Returns how many of the first `count` tokens of the sequence were kept. */
  resetKeep(count) {
    checkInteger("count", count);
    const { native } = this.#library;
    const kept = native.eliza_inference_llm_stream_reset_keep(this.handle, count);
    return succeeded("reset_keep", kept);
  }

  async #run(native, ...args) {
    this.#running = this.#library.callAsync(native, this.handle, ...args);
    try {
      return await this.#running;
    } finally {
      this.#running = null;
    }
  }
}

// What callers pass is checked first: C would get a number cut to 32 bits, a text cut at its NUL, and
// a number for the address of a text. koffi ends the process for a text where it expects an integer.

function checkType(name, value, type) {
  if (typeof value !== type) throw new TypeError(`${name} is no ${type}: ${String(value)}`);
  return value;
}

function checkText(name, value) {
  if (checkType(name, value, "string").includes("\0")) {
    throw new TypeError(`${name} contains a NUL`);
  }
  return value;
}

/** At most 32 bits and a sign; or no sign, with 0 for `least`. */
function checkInteger(name, value, least = -(2 ** 31)) {
  const fits = Number.isInteger(checkType(name, value, "number"));
  if (!fits || value < least || value >= 2 ** 31) {
    throw new RangeError(`${name} is ${value}, not an integer from ${least} to ${2 ** 31 - 1}`);
  }
  return value;
}

function checkCapacity(name, value) {
  return checkInteger(name, value, 0);
}

function checkTokens(tokens) {
  if (tokens instanceof Int32Array) return tokens;
  if (!Array.isArray(tokens)) throw new TypeError("tokens are no array");
  tokens.forEach((token, index) => checkInteger(`tokens[${index}]`, token));
  return tokens;
}

/** The config with its defaults. koffi ignores names that it does not know. */
function completeConfig(config) {
  if (config === null) throw new TypeError("config is null");
  for (const [name, value] of Object.entries(config)) {
    const type = CONFIG.members[name]?.type.primitive;
    if (type === undefined) throw new TypeError(`${name} is no field of a config`);
    if (value === undefined) continue;
    if (type === "Int32") checkInteger(name, value);
    else if (type === "Float32") checkType(name, value, "number");
    else checkText(name, value);
  }
  const { slotId = -1 } = config;
  return { ...config, slotId };
}

/** Copies an array of the library's, which may be NULL when it is empty. */
function copyInts(array, count) {
  return array === null ? [] : Array.from(koffi.decode(array, "int", count));
}

function readEvent(pointer) {
  const event = koffi.decode(pointer, "EliVerifierEvent");
  return {
    accepted: copyInts(event.accepted, event.acceptedCount),
    rejectedFrom: event.rejectedFrom,
    rejectedTo: event.rejectedTo,
    corrected: copyInts(event.corrected, event.correctedCount),
  };
}

function succeeded(name, result) {
  if (result < 0) throw new ElizaError(`eliza_inference_llm_stream_${name} failed`, result);
  return result;
}
