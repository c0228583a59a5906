/**
 * A Worker that cancels a stream of another thread. A process has the library once, so that a handle
 * means the same in every Worker that opens it.
 */

import { type Handle, Library } from "./eliza.ts";

declare const self: Worker;

export interface Order {
  library: string;
  stream: Handle;
  /** One number that turns from 0 to 1 when the call to be stopped begins. */
  begun: Int32Array<SharedArrayBuffer>;
  afterMs: number;
}

self.onmessage = ({ data }: MessageEvent<Order>) => {
  const { symbols } = new Library(data.library);
  self.postMessage("ready");
  Atomics.wait(data.begun, 0, 0);
  Bun.sleepSync(data.afterMs);
  const cancelledAt = performance.timeOrigin + performance.now();
  symbols.eliza_inference_llm_stream_cancel(data.stream);
  self.postMessage(cancelledAt);
};
