/** libelizainference for Bun: contexts and streams over `bun:ffi`. */

import { CString, dlopen, JSCallback, type Pointer, ptr, read, toArrayBuffer } from "bun:ffi";

const probe = { args: [], returns: "i32" } as const;
const release = { args: ["ptr"], returns: "void" } as const;

/** The functions of the header that are used here. Handles and strings are plain addresses. */
const FUNCTIONS = {
  eliza_inference_abi_version: { args: [], returns: "cstring" },
  eliza_inference_create: { args: ["cstring", "ptr"], returns: "ptr" },
  eliza_inference_destroy: release,
  eliza_inference_free_string: release,
  eliza_inference_free_tokens: release,

  eliza_inference_llm_stream_supported: probe,
  eliza_inference_llm_mtp_supported: probe,
  eliza_inference_llm_kv_quant_supported: probe,
  eliza_inference_tokenize_supported: probe,
  eliza_inference_tts_stream_supported: probe,
  eliza_inference_asr_stream_supported: probe,
  eliza_inference_vad_supported: probe,
  eliza_inference_wakeword_supported: probe,
  eliza_inference_speaker_supported: probe,
  eliza_inference_diariz_supported: probe,

  eliza_inference_llm_stream_open: { args: ["ptr", "ptr", "ptr"], returns: "ptr" },
  eliza_inference_llm_stream_prefill: { args: ["ptr", "ptr", "usize", "ptr"], returns: "i32" },
  eliza_inference_llm_stream_next: {
    args: ["ptr", "ptr", "usize", "ptr", "ptr", "usize", "ptr", "ptr", "ptr"],
    returns: "i32",
  },
  eliza_inference_llm_stream_cancel: { args: ["ptr"], returns: "i32" },
  eliza_inference_llm_stream_save_slot: { args: ["ptr", "cstring", "ptr"], returns: "i32" },
  eliza_inference_llm_stream_restore_slot: { args: ["ptr", "cstring", "ptr"], returns: "i32" },
  eliza_inference_llm_stream_reset: { args: ["ptr"], returns: "i32" },
  eliza_inference_llm_stream_reset_keep: { args: ["ptr", "i32"], returns: "i32" },
  eliza_inference_llm_stream_close: release,
  eliza_inference_set_verifier_callback: { args: ["ptr", "ptr", "ptr", "ptr"], returns: "i32" },

  eliza_inference_tokenize: {
    args: ["ptr", "ptr", "usize", "i32", "i32", "ptr", "ptr", "ptr"],
    returns: "i32",
  },
  eliza_inference_detokenize: {
    args: ["ptr", "ptr", "usize", "i32", "i32", "ptr", "usize", "ptr"],
    returns: "i32",
  },

  eliza_inference_asr_transcribe: {
    args: ["ptr", "ptr", "usize", "i32", "ptr", "usize", "ptr"],
    returns: "i32",
  },
  eliza_inference_asr_stream_close: release,
  eliza_inference_vad_close: release,
  eliza_inference_wakeword_close: release,
  eliza_inference_speaker_close: release,
  eliza_inference_diariz_close: release,
} as const;

function load(path: string) {
  return dlopen(path, FUNCTIONS).symbols;
}

type Symbols = ReturnType<typeof load>;
export type Handle = Pointer | bigint;

/** What the library reports; `code` is missing where a function returned NULL. */
export class ElizaError extends Error {
  override readonly name = "ElizaError";
  readonly code?: number;

  constructor(message: string, code?: number) {
    super(message);
    this.code = code;
  }
}

/** The fields of `eliza_llm_stream_config_t`. What is left out is zero or NULL, `slotId` -1. */
export interface StreamConfig {
  maxTokens?: number;
  temperature?: number;
  topP?: number;
  topK?: number;
  repeatPenalty?: number;
  slotId?: number;
  promptCacheKey?: string;
  draftMin?: number;
  draftMax?: number;
  mtpDrafterPath?: string;
  gbnfGrammar?: string;
  disableThinking?: number;
  nGpuLayers?: number;
  cacheTypeK?: string;
  cacheTypeV?: string;
}

const CONFIG_SIZE = 80;
const CONFIG_FIELDS: Record<keyof StreamConfig, [offset: number, type: "i32" | "f32" | "text"]> = {
  maxTokens: [0, "i32"],
  temperature: [4, "f32"],
  topP: [8, "f32"],
  topK: [12, "i32"],
  repeatPenalty: [16, "f32"],
  slotId: [20, "i32"],
  promptCacheKey: [24, "text"],
  draftMin: [32, "i32"],
  draftMax: [36, "i32"],
  mtpDrafterPath: [40, "text"],
  gbnfGrammar: [48, "text"],
  disableThinking: [56, "i32"],
  nGpuLayers: [60, "i32"],
  cacheTypeK: [64, "text"],
  cacheTypeV: [72, "text"],
};

export interface Step {
  /** Nothing more comes until the next prefill. */
  done: boolean;
  tokens: number[];
  text: string;
  drafted: number;
  accepted: number;
}

export interface VerifierEvent {
  accepted: number[];
  rejectedFrom: number;
  rejectedTo: number;
  corrected: number[];
}

export class Library {
  readonly symbols: Symbols;

  constructor(path: string) {
    this.symbols = load(path);
  }

  get version(): string {
    return this.symbols.eliza_inference_abi_version() ?? "";
  }

  createContext(bundle: string): Context {
    const create = this.symbols.eliza_inference_create;
    return new Context(this, this.call(create, checkText("bundle", bundle)));
  }

  /** Calls a function whose last parameter is `out_error`; NULL or a negative code is thrown. */
  call<Args extends unknown[], Result extends number | Handle | null>(
    native: (...args: [...Args, out_error: BigUint64Array]) => Result,
    ...args: Args
  ): NonNullable<Result> {
    const error = new BigUint64Array(1);
    const result = native(...args, error);
    if (result === null || result < 0) {
      const message = CString(error[0]);
      this.symbols.eliza_inference_free_string(error[0]);
      throw new ElizaError(message, result === null ? undefined : Number(result));
    }
    return result;
  }
}

/** A bundle and its models. Its streams may outlive it. */
export class Context {
  #library: Library;
  #handle: Handle | null;
  #callback: JSCallback | null = null;

  constructor(library: Library, handle: Handle) {
    this.#library = library;
    this.#handle = handle;
  }

  get handle(): Handle {
    if (this.#handle === null) throw new Error("the context is closed");
    return this.#handle;
  }

  close(): void {
    if (this.#callback !== null) this.setVerifier(null);
    this.#library.symbols.eliza_inference_destroy(this.#handle);
    this.#handle = null;
  }

  [Symbol.dispose](): void {
    this.close();
  }

  openStream(config: StreamConfig = {}): Stream {
    const open = this.#library.symbols.eliza_inference_llm_stream_open;
    return new Stream(this.#library, this.#library.call(open, this.handle, packConfig(config)));
  }

  tokenize(text: string, { addSpecial = true, parseSpecial = false } = {}): number[] {
    checkString("text", text);
    const { symbols } = this.#library;
    const bytes = encoder.encode(text);
    const tokens = new BigUint64Array(1);
    const count = new BigUint64Array(1);
    this.#library.call(
      symbols.eliza_inference_tokenize,
      this.handle,
      bytes,
      bytes.length,
      Number(addSpecial),
      Number(parseSpecial),
      tokens,
      count,
    );
    const ids = copyInts(tokens[0], Number(count[0]));
    symbols.eliza_inference_free_tokens(tokens[0]);
    return ids;
  }

  /** `capacity` is the room for the text in bytes, terminator included. */
  detokenize(
    tokens: number[],
    options: { removeSpecial?: boolean; unparseSpecial?: boolean; capacity?: number } = {},
  ): string {
    checkTokens(tokens);
    const { removeSpecial = false, unparseSpecial = false } = options;
    const capacity = options.capacity ?? 16 * tokens.length + 64;
    const text = new Uint8Array(checkCapacity("capacity", capacity));
    const size = this.#library.call(
      this.#library.symbols.eliza_inference_detokenize,
      this.handle,
      Int32Array.from(tokens),
      tokens.length,
      Number(removeSpecial),
      Number(unparseSpecial),
      text,
      capacity,
    );
    return decoder.decode(text.subarray(0, size));
  }

  /** What is said in mono PCM in [-1, 1]. */
  transcribe(pcm: Float32Array, sampleRate: number, capacity: number): string {
    checkSamples(pcm);
    checkInteger("sampleRate", sampleRate);
    const text = new Uint8Array(checkCapacity("capacity", capacity));
    const size = this.#library.call(
      this.#library.symbols.eliza_inference_asr_transcribe,
      this.handle,
      pcm,
      pcm.length,
      sampleRate,
      text,
      capacity,
    );
    return decoder.decode(text.subarray(0, size));
  }

  /** Sets the callback of all streams of the context; null clears it. */
  setVerifier(verified: ((event: VerifierEvent) => void) | null): void {
    const { handle } = this; // a closed context throws before there is a callback to free
    const callback = verified &&
      new JSCallback((event: Pointer) => verified(readEvent(event)), {
        args: ["ptr", "ptr"],
        returns: "void",
      });
    this.#library.call(
      this.#library.symbols.eliza_inference_set_verifier_callback,
      handle,
      callback?.ptr ?? null,
      null,
    );
    this.#callback?.close(); // only now: until here the library might have called it
    this.#callback = callback;
  }
}

/** One sequence of tokens. Its calls block the thread that makes them. */
export class Stream {
  #library: Library;
  #handle: Handle | null;
  #running = false;

  constructor(library: Library, handle: Handle) {
    this.#library = library;
    this.#handle = handle;
  }

  /** A number: post it to a Worker, which may call `eliza_inference_llm_stream_cancel` with it. */
  get handle(): Handle {
    if (this.#handle === null) throw new Error("the stream is closed");
    return this.#handle;
  }

  /** Closes the stream; in the verifier callback, which a call runs, cancels that and closes then. */
  close(): void {
    if (this.#handle === null) return;
    const { symbols } = this.#library;
    if (this.#running) symbols.eliza_inference_llm_stream_cancel(this.#handle);
    else symbols.eliza_inference_llm_stream_close(this.#handle);
    this.#handle = null; // from here on every other call is refused
  }

  [Symbol.dispose](): void {
    this.close();
  }

  /** Stops the call that runs the verifier callback, and refuses all others until a reset. */
  cancel(): void {
    if (this.#handle === null) return; // there is nothing left to stop
    this.#library.symbols.eliza_inference_llm_stream_cancel(this.#handle);
  }

  prefill(tokens: number[]): void {
    checkTokens(tokens);
    const prefill = this.#library.symbols.eliza_inference_llm_stream_prefill;
    this.#run((handle) =>
      this.#library.call(prefill, handle, Int32Array.from(tokens), tokens.length)
    );
  }

  /** At most one model step, with room for so many tokens and bytes of text. */
  next(tokensCap = 16, textCap = 256): Step {
    const tokens = new Int32Array(checkCapacity("tokensCap", tokensCap));
    const count = new BigUint64Array(1);
    const text = new Uint8Array(checkCapacity("textCap", textCap));
    const drafted = new Int32Array(1);
    const accepted = new Int32Array(1);
    const result = this.#run((handle) =>
      this.#library.call(
        this.#library.symbols.eliza_inference_llm_stream_next,
        handle,
        tokens,
        tokensCap,
        count,
        text,
        textCap,
        drafted,
        accepted,
      )
    );
    return {
      done: result === 1,
      tokens: Array.from(tokens.subarray(0, Number(count[0]))),
      text: decoder.decode(text.subarray(0, text.indexOf(0))),
      drafted: drafted[0],
      accepted: accepted[0],
    };
  }

  /** The steps of a generation, the final one included. */
  *steps(tokensCap?: number, textCap?: number): Generator<Step, void> {
    let step: Step;
    do {
      step = this.next(tokensCap, textCap);
      yield step;
    } while (!step.done);
  }

  saveSlot(path: string): void {
    checkText("path", path);
    const save = this.#library.symbols.eliza_inference_llm_stream_save_slot;
    this.#run((handle) => this.#library.call(save, handle, path));
  }

  restoreSlot(path: string): void {
    checkText("path", path);
    const restore = this.#library.symbols.eliza_inference_llm_stream_restore_slot;
    this.#run((handle) => this.#library.call(restore, handle, path));
  }

  reset(): void {
    const { symbols } = this.#library;
    succeeded("reset", this.#run((handle) => symbols.eliza_inference_llm_stream_reset(handle)));
  }

  /** Returns how many of the first `count` tokens of the sequence were kept. */
  resetKeep(count: number): number {
    checkInteger("count", count);
    const reset = this.#library.symbols.eliza_inference_llm_stream_reset_keep;
    return succeeded("reset_keep", this.#run((handle) => reset(handle, count)));
  }

  #run(call: (handle: Handle) => number): number {
    const { handle } = this;
    if (this.#running) throw new Error("the stream is busy");
    this.#running = true;
    try {
      return call(handle);
    } finally {
      this.#running = false;
      if (this.#handle === null) this.#library.symbols.eliza_inference_llm_stream_close(handle);
    }
  }
}

const encoder = new TextEncoder();
const decoder = new TextDecoder("utf-8", { ignoreBOM: true }); // a token may begin with one

// What callers pass is checked first, also without a type checker: C would get a number cut to 32
// bits, a text cut at its NUL, and a number for the address of a text.

function checkString(name: string, value: unknown): string {
  if (typeof value !== "string") throw new TypeError(`${name} is no string: ${String(value)}`);
  return value;
}

function checkText(name: string, value: unknown): string {
  const text = checkString(name, value);
  if (text.includes("\0")) throw new TypeError(`${name} contains a NUL`);
  return text;
}

function checkNumber(name: string, value: unknown): number {
  if (typeof value !== "number") throw new TypeError(`${name} is no number: ${String(value)}`);
  return value;
}

/** At most 32 bits and a sign; or no sign, with 0 for `least`. */
function checkInteger(name: string, value: unknown, least = -(2 ** 31)): number {
  const number = checkNumber(name, value);
  if (!Number.isInteger(number) || number < least || number >= 2 ** 31) {
    throw new RangeError(`${name} is ${number}, not an integer from ${least} to ${2 ** 31 - 1}`);
  }
  return number;
}

function checkCapacity(name: string, value: unknown): number {
  return checkInteger(name, value, 0);
}

function checkTokens(tokens: number[]): void {
  if (!Array.isArray(tokens)) throw new TypeError("tokens are no array");
  tokens.forEach((token, index) => checkInteger(`tokens[${index}]`, token));
}

function checkSamples(pcm: Float32Array): void {
  if (!(pcm instanceof Float32Array)) throw new TypeError("pcm is no Float32Array");
}

/**
 * The struct with its strings behind it, in one buffer: what holds the struct holds them.
 *
 * The ArrayBuffer comes first because a small typed array that was made without one moves when it
 * is asked for its `buffer`, and leaves the address that `ptr` gave before.
 */
function packConfig(config: StreamConfig): Uint8Array {
  if (config === null) throw new TypeError("config is null");
  const { slotId = -1 } = config;
  const texts = Object.values(config).filter((value) => typeof value === "string");
  const room = texts.reduce((sum, text) => sum + 3 * text.length + 1, CONFIG_SIZE);
  const buffer = new ArrayBuffer(room);
  const bytes = new Uint8Array(buffer);
  const view = new DataView(buffer);
  let end = CONFIG_SIZE;
  for (const [name, value] of Object.entries({ ...config, slotId })) {
    const field = CONFIG_FIELDS[name as keyof StreamConfig];
    if (field === undefined) throw new TypeError(`${name} is no field of a config`);
    const [offset, type] = field;
    if (value === undefined) continue;
    if (type === "text") {
      view.setBigUint64(offset, BigInt(ptr(buffer, end)), true);
      end += encoder.encodeInto(checkText(name, value), bytes.subarray(end)).written + 1;
    } else if (type === "f32") {
      view.setFloat32(offset, checkNumber(name, value), true);
    } else {
      view.setInt32(offset, checkInteger(name, value), true);
    }
  }
  return bytes;
}

/** Copies an array of the library's, which may be NULL when it is empty. */
function copyInts(array: number | bigint, count: number): number[] {
  if (count === 0) return [];
  return Array.from(new Int32Array(toArrayBuffer(array, 0, 4 * count)));
}

function readEvent(event: Pointer): VerifierEvent {
  return {
    accepted: copyInts(read.ptr(event, 0), Number(read.u64(event, 8))),
    rejectedFrom: read.i32(event, 16),
    rejectedTo: read.i32(event, 20),
    corrected: copyInts(read.ptr(event, 24), Number(read.u64(event, 32))),
  };
}

function succeeded(name: string, result: number): number {
  if (result < 0) throw new ElizaError(`eliza_inference_llm_stream_${name} failed`, result);
  return result;
}
