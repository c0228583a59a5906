/** libelizainference for Deno: contexts and streams over `Deno.dlopen`. */

const probe = { parameters: [], result: "i32" } as const;
const release = { parameters: ["pointer"], result: "void" } as const;
const slot = {
  parameters: ["pointer", "buffer", "buffer"],
  result: "i32",
  nonblocking: true,
} as const;

/** The functions of the header that are used here. What takes long runs on a thread of a pool. */
const FUNCTIONS = {
  eliza_inference_abi_version: { parameters: [], result: "pointer" },
  eliza_inference_create: { parameters: ["buffer", "buffer"], result: "pointer" },
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

  eliza_inference_llm_stream_open: {
    parameters: ["pointer", "buffer", "buffer"],
    result: "pointer",
    nonblocking: true,
  },
  eliza_inference_llm_stream_prefill: {
    parameters: ["pointer", "buffer", "usize", "buffer"],
    result: "i32",
    nonblocking: true,
  },
  eliza_inference_llm_stream_next: {
    parameters: [
      "pointer",
      "buffer",
      "usize",
      "buffer",
      "buffer",
      "usize",
      "buffer",
      "buffer",
      "buffer",
    ],
    result: "i32",
    nonblocking: true,
  },
  eliza_inference_llm_stream_cancel: { parameters: ["pointer"], result: "i32" },
  eliza_inference_llm_stream_save_slot: slot,
  eliza_inference_llm_stream_restore_slot: slot,
  eliza_inference_llm_stream_reset: { parameters: ["pointer"], result: "i32" },
  eliza_inference_llm_stream_reset_keep: { parameters: ["pointer", "i32"], result: "i32" },
  eliza_inference_llm_stream_close: release,
  eliza_inference_set_verifier_callback: {
    parameters: ["pointer", "function", "pointer", "buffer"],
    result: "i32",
    nonblocking: true,
  },

  eliza_inference_tokenize: {
    parameters: ["pointer", "buffer", "usize", "i32", "i32", "buffer", "buffer", "buffer"],
    result: "i32",
  },
  eliza_inference_detokenize: {
    parameters: ["pointer", "buffer", "usize", "i32", "i32", "buffer", "usize", "buffer"],
    result: "i32",
  },

  eliza_inference_asr_transcribe: {
    parameters: ["pointer", "buffer", "usize", "i32", "buffer", "usize", "buffer"],
    result: "i32",
  },
  eliza_inference_asr_stream_close: release,
  eliza_inference_vad_close: release,
  eliza_inference_wakeword_close: release,
  eliza_inference_speaker_close: release,
  eliza_inference_diariz_close: release,
} as const satisfies Deno.ForeignLibraryInterface;

/** `eliza_verifier_cb`. */
const VERIFIER = { parameters: ["pointer", "pointer"], result: "void" } as const;

type Symbols = Deno.DynamicLibrary<typeof FUNCTIONS>["symbols"];
type OutError = BigUint64Array<ArrayBuffer>;
type Outcome = number | Deno.PointerValue;

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

type Verifier = (event: VerifierEvent) => void;

export class Library {
  readonly symbols: Symbols;

  constructor(path: string) {
    this.symbols = Deno.dlopen(path, FUNCTIONS).symbols;
  }

  get version(): string {
    return readText(this.symbols.eliza_inference_abi_version());
  }

  createContext(bundle: string): Context {
    const path = cString(checkText("bundle", bundle));
    return new Context(this, this.call(this.symbols.eliza_inference_create, path));
  }

  /** Calls a function whose last parameter is `out_error`; NULL or a negative code is thrown. */
  call<Args extends unknown[], Result extends Outcome>(
    native: (...args: [...Args, out_error: OutError]) => Result,
    ...args: Args
  ): NonNullable<Result> {
    const error = new BigUint64Array(1);
    return this.#checked(native(...args, error), error);
  }

  /** The same for a nonblocking function, which runs while the event loop goes on. */
  async callAsync<Args extends unknown[], Result extends Outcome>(
    native: (...args: [...Args, out_error: OutError]) => Promise<Result>,
    ...args: Args
  ): Promise<NonNullable<Result>> {
    const error = new BigUint64Array(1);
    inUse.add(args);
    try {
      return this.#checked(await native(...args, error), error);
    } finally {
      inUse.delete(args);
    }
  }

  #checked<Result extends Outcome>(result: Result, error: OutError): NonNullable<Result> {
    const failed = typeof result === "number" ? result < 0 : result === null;
    if (!failed) return result!;
    const text = Deno.UnsafePointer.create(error[0]);
    const message = readText(text);
    this.symbols.eliza_inference_free_string(text);
    throw new ElizaError(message, typeof result === "number" ? result : undefined);
  }
}

/** A bundle and its models. Its streams may outlive it. */
export class Context {
  #library: Library;
  #handle: Deno.PointerValue;
  #callback: Deno.UnsafeCallback<typeof VERIFIER> | null = null;
  #running = new Set<Promise<unknown>>();

  constructor(library: Library, handle: Deno.PointerObject) {
    this.#library = library;
    this.#handle = handle;
  }

  get handle(): Deno.PointerObject {
    if (this.#handle === null) throw new Error("the context is closed");
    return this.#handle;
  }

  /** Closes the context after the calls on it that run. */
  async close(): Promise<void> {
    const handle = this.#handle;
    this.#handle = null; // from here on every other call is refused
    await Promise.allSettled(this.#running);
    if (handle !== null && this.#callback !== null) await this.#replaceVerifier(handle, null);
    this.#library.symbols.eliza_inference_destroy(handle);
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.close();
  }

  /** Loads the model if it is the first to need it. */
  async openStream(config: StreamConfig = {}): Promise<Stream> {
    const open = this.#library.symbols.eliza_inference_llm_stream_open;
    const opening = this.#library.callAsync(open, this.handle, packConfig(config));
    return new Stream(this.#library, await this.#untilDone(opening));
  }

  tokenize(text: string, { addSpecial = true, parseSpecial = false } = {}): number[] {
    checkString("text", text);
    const { symbols } = this.#library;
    const bytes = cString(text); // not empty, even if the text is: see `ints`
    const tokens = new BigUint64Array(1);
    const count = new BigUint64Array(1);
    this.#library.call(
      symbols.eliza_inference_tokenize,
      this.handle,
      bytes,
      BigInt(bytes.length - 1),
      Number(addSpecial),
      Number(parseSpecial),
      tokens,
      count,
    );
    const array = Deno.UnsafePointer.create(tokens[0]);
    const ids = copyInts(array, Number(count[0]));
    symbols.eliza_inference_free_tokens(array);
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
      ints(tokens),
      BigInt(tokens.length),
      Number(removeSpecial),
      Number(unparseSpecial),
      text,
      BigInt(capacity),
    );
    return decoder.decode(text.subarray(0, size));
  }

  /** What is said in mono PCM in [-1, 1]. */
  transcribe(pcm: Float32Array<ArrayBuffer>, sampleRate: number, capacity: number): string {
    checkSamples(pcm);
    checkInteger("sampleRate", sampleRate);
    const text = new Uint8Array(checkCapacity("capacity", capacity));
    const size = this.#library.call(
      this.#library.symbols.eliza_inference_asr_transcribe,
      this.handle,
      pcm,
      BigInt(pcm.length),
      sampleRate,
      text,
      BigInt(capacity),
    );
    return decoder.decode(text.subarray(0, size));
  }

  /**
   * Sets the callback of all streams of the context; null clears it.
   *
   * It is called on the thread of the event loop, for which the generating thread waits. This call
   * in turn waits for the generating thread, so it is asynchronous as well.
   */
  async setVerifier(verified: Verifier | null): Promise<void> {
    await this.#untilDone(this.#replaceVerifier(this.handle, verified));
  }

  async #replaceVerifier(handle: Deno.PointerObject, verified: Verifier | null): Promise<void> {
    const callback = verified &&
      new Deno.UnsafeCallback(VERIFIER, (event) => verified(readEvent(event!)));
    const set = this.#library.symbols.eliza_inference_set_verifier_callback;
    await this.#library.callAsync(set, handle, callback && callback.pointer, null);
    this.#callback?.close();
    this.#callback = callback;
  }

  /** Awaits a call that `close` has to wait for. */
  async #untilDone<Result>(call: Promise<Result>): Promise<Result> {
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
  #library: Library;
  #handle: Deno.PointerValue;
  #running: Promise<number> | null = null;

  constructor(library: Library, handle: Deno.PointerObject) {
    this.#library = library;
    this.#handle = handle;
  }

  get handle(): Deno.PointerObject {
    if (this.#handle === null) throw new Error("the stream is closed");
    if (this.#running !== null) throw new Error("the stream is busy");
    return this.#handle;
  }

  /** Cancels the call that runs, if any, and closes the stream after it. */
  async close(): Promise<void> {
    const { symbols } = this.#library;
    const handle = this.#handle;
    this.#handle = null; // from here on every other call is refused
    if (this.#running !== null) {
      symbols.eliza_inference_llm_stream_cancel(handle);
      await this.#running.catch(() => {});
    }
    symbols.eliza_inference_llm_stream_close(handle);
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.close();
  }

  /** Stops the call that runs, and refuses all others until a reset. */
  cancel(): void {
    if (this.#handle === null) return; // there is nothing left to stop
    this.#library.symbols.eliza_inference_llm_stream_cancel(this.#handle);
  }

  async prefill(tokens: number[]): Promise<void> {
    checkTokens(tokens);
    const { symbols } = this.#library;
    await this.#run(
      symbols.eliza_inference_llm_stream_prefill,
      ints(tokens),
      BigInt(tokens.length),
    );
  }

  /** At most one model step, with room for so many tokens and bytes of text. */
  async next(tokensCap = 16, textCap = 256): Promise<Step> {
    const tokens = new Int32Array(checkCapacity("tokensCap", tokensCap));
    const count = new BigUint64Array(1);
    const text = new Uint8Array(checkCapacity("textCap", textCap));
    const drafted = new Int32Array(1);
    const accepted = new Int32Array(1);
    const result = await this.#run(
      this.#library.symbols.eliza_inference_llm_stream_next,
      tokens,
      BigInt(tokensCap),
      count,
      text,
      BigInt(textCap),
      drafted,
      accepted,
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
  async *steps(tokensCap?: number, textCap?: number): AsyncGenerator<Step, void> {
    let step: Step;
    do {
      step = await this.next(tokensCap, textCap);
      yield step;
    } while (!step.done);
  }

  async saveSlot(path: string): Promise<void> {
    const save = this.#library.symbols.eliza_inference_llm_stream_save_slot;
    await this.#run(save, cString(checkText("path", path)));
  }

  async restoreSlot(path: string): Promise<void> {
    const restore = this.#library.symbols.eliza_inference_llm_stream_restore_slot;
    await this.#run(restore, cString(checkText("path", path)));
  }

  reset(): void {
    const { symbols } = this.#library;
    succeeded("reset", symbols.eliza_inference_llm_stream_reset(this.handle));
  }

  /** Returns how many of the first `count` tokens of the sequence were kept. */
  resetKeep(count: number): number {
    checkInteger("count", count);
    const { symbols } = this.#library;
    const kept = symbols.eliza_inference_llm_stream_reset_keep(this.handle, count);
    return succeeded("reset_keep", kept);
  }

  async #run<Args extends unknown[]>(
    native: (...args: [Deno.PointerValue, ...Args, out_error: OutError]) => Promise<number>,
    ...args: Args
  ): Promise<number> {
    this.#running = this.#library.callAsync(native, this.handle, ...args);
    try {
      return await this.#running;
    } finally {
      this.#running = null;
    }
  }
}

/** NUL-terminated UTF-8. */
export function cString(text: string): Uint8Array<ArrayBuffer> {
  return encoder.encode(`${text}\0`);
}

const encoder = new TextEncoder();
const decoder = new TextDecoder("utf-8", { ignoreBOM: true }); // a token may begin with one

/** The arguments of nonblocking calls. Deno lets the collector take their buffers meanwhile. */
const inUse = new Set<unknown[]>();

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

/** The struct with its strings behind it, in one buffer: what holds the struct holds them. */
function packConfig(config: StreamConfig): Uint8Array<ArrayBuffer> {
  if (config === null) throw new TypeError("config is null");
  const { slotId = -1 } = config;
  const texts = Object.values(config).filter((value) => typeof value === "string");
  const room = texts.reduce((sum, text) => sum + 3 * text.length + 1, CONFIG_SIZE);
  const bytes = new Uint8Array(room);
  const view = new DataView(bytes.buffer);
  const address = Deno.UnsafePointer.value(Deno.UnsafePointer.of(bytes));
  let end = CONFIG_SIZE;
  for (const [name, value] of Object.entries({ ...config, slotId })) {
    const field = CONFIG_FIELDS[name as keyof StreamConfig];
    if (field === undefined) throw new TypeError(`${name} is no field of a config`);
    const [offset, type] = field;
    if (value === undefined) continue;
    if (type === "text") {
      view.setBigUint64(offset, address + BigInt(end), true);
      end += encoder.encodeInto(checkText(name, value), bytes.subarray(end)).written + 1;
    } else if (type === "f32") {
      view.setFloat32(offset, checkNumber(name, value), true);
    } else {
      view.setInt32(offset, checkInteger(name, value), true);
    }
  }
  return bytes;
}

/** Never empty: Deno passes an empty array as NULL. */
function ints(values: number[]): Int32Array<ArrayBuffer> {
  return Int32Array.from(values.length > 0 ? values : [0]);
}

function readText(text: Deno.PointerValue): string {
  return text === null ? "" : Deno.UnsafePointerView.getCString(text);
}

/** Copies an array of the library's, which may be NULL when it is empty. */
function copyInts(array: Deno.PointerValue, count: number): number[] {
  if (array === null || count === 0) return [];
  return Array.from(new Int32Array(Deno.UnsafePointerView.getArrayBuffer(array, 4 * count)));
}

function readEvent(event: Deno.PointerObject): VerifierEvent {
  const view = new Deno.UnsafePointerView(event);
  return {
    accepted: copyInts(view.getPointer(0), Number(view.getBigUint64(8))),
    rejectedFrom: view.getInt32(16),
    rejectedTo: view.getInt32(20),
    corrected: copyInts(view.getPointer(24), Number(view.getBigUint64(32))),
  };
}

function succeeded(name: string, result: number): number {
  if (result < 0) throw new ElizaError(`eliza_inference_llm_stream_${name} failed`, result);
  return result;
}
