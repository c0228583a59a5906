/*
 * libelizainference: streaming on-device inference behind one C ABI, version 8.
 *
 * Conventions, stated once:
 *
 * - Handles are opaque. `create` and every `*_open` return NULL on failure; `destroy` and every
 *   `*_close` accept NULL. A handle is dead after it was closed.
 *
 * - Errors: a function that returns `int` returns ELIZA_OK (or another value >= 0 where documented)
 *   on success and a negative ELIZA_ERR_* code on failure. On failure `*out_error` is set to a
 *   NUL-terminated UTF-8 message that names the function, the offending value and what to do; free
 *   it with eliza_inference_free_string. On success it is left alone. `out_error` may be NULL.
 *   `reset`, `reset_keep` and `cancel` have no message.
 *
 * - Ownership: inputs are borrowed for the call. Strings and token arrays handed out come from
 *   malloc: free them with eliza_inference_free_string or eliza_inference_free_tokens (plain free
 *   does as well).
 *
 * - NULL: a pointer must not be NULL unless its description says so; NULL is then
 *   ELIZA_ERR_INVALID_ARG, not a crash.
 *
 * - Threads: a context may be used from any thread. A stream (and any other opened handle) is used
 *   by one thread at a time, except that eliza_inference_llm_stream_cancel may be called from any
 *   thread until close begins. Different streams run in parallel.
 *
 * - Text is UTF-8. What the library writes is always valid UTF-8 and NUL-terminated: bytes that can
 *   never become a character, and U+0000, are delivered as U+FFFD.
 *
 * - Output: the library writes nothing to stdout or stderr unless the environment variable
 *   ELIZA_LLM_LOG asks for it. No C++ exception crosses this boundary.
 *
 * Only the language-model and tokenizer families answer in this build. The voice families exist so
 * that consumers can bind the whole table: their `*_supported` functions return 0 and their work
 * functions return ELIZA_ERR_NOT_IMPLEMENTED with a message.
 */
#ifndef ELIZA_INFERENCE_FFI_H
#define ELIZA_INFERENCE_FFI_H

#include <stddef.h>
#include <stdint.h>

#if defined(_WIN32)
#if defined(ELIZA_INFERENCE_BUILD)
#define ELIZA_INFERENCE_API __declspec(dllexport)
#else
#define ELIZA_INFERENCE_API __declspec(dllimport)
#endif
#elif defined(__GNUC__)
#define ELIZA_INFERENCE_API __attribute__((visibility("default")))
#else
#define ELIZA_INFERENCE_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* The ABI level of this header; eliza_inference_abi_version() reports it as a string. */
#define ELIZA_INFERENCE_ABI_VERSION 8

#define ELIZA_OK 0
#define ELIZA_ERR_NOT_IMPLEMENTED (-1) /* this build does not have it */
#define ELIZA_ERR_INVALID_ARG (-2)     /* an argument, or the order of calls, is wrong */
#define ELIZA_ERR_BUNDLE_INVALID (-3)  /* the bundle or a file in it cannot be used */
#define ELIZA_ERR_FFI_FAULT (-4)       /* the runtime failed; the message says how */
#define ELIZA_ERR_OOM (-5)             /* memory could not be allocated */
#define ELIZA_ERR_ABI_MISMATCH (-6)    /* reserved for loaders */
#define ELIZA_ERR_CANCELLED (-7)       /* the stream was cancelled; reset it to go on */

typedef struct EliInferenceContext EliInferenceContext;
typedef struct EliLlmStream EliLlmStream;
typedef struct EliAsrStream EliAsrStream;
typedef struct EliVad EliVad;
typedef struct EliWakeWord EliWakeWord;
typedef struct EliSpeaker EliSpeaker;
typedef struct EliDiariz EliDiariz;

/* ---------------------------------------------------------------- core ---- */

/* The ABI version, "8". Static storage; never NULL; do not free. */
ELIZA_INFERENCE_API const char* eliza_inference_abi_version(void);

/* Creates a context for the bundle directory `bundle_dir` (its models lie under `text/`). Checks
 * the directory only; weights load at first use and are shared by all streams of the context. A
 * loaded model file is mapped: replace it by renaming a new one over it, never by writing into it.
 * Returns NULL on failure. Release with eliza_inference_destroy. */
ELIZA_INFERENCE_API EliInferenceContext* eliza_inference_create(const char* bundle_dir,
                                                                char** out_error);

/* Destroys a context. Its open streams stay usable until they are closed. NULL is ignored. */
ELIZA_INFERENCE_API void eliza_inference_destroy(EliInferenceContext* ctx);

/* Frees a string handed out by this library. NULL is ignored. */
ELIZA_INFERENCE_API void eliza_inference_free_string(char* str);

/* Makes the weights of a region resident. Region "text": loads the text model now instead of at the
 * first use. Other regions belong to the voice families: ELIZA_ERR_NOT_IMPLEMENTED. */
ELIZA_INFERENCE_API int eliza_inference_mmap_acquire(EliInferenceContext* ctx,
                                                     const char* region_name, char** out_error);

/* Lets the weights of a region go. Region "text": the context drops the text model; it is freed
 * once no stream uses it, and the next use loads it again. Other regions:
 * ELIZA_ERR_NOT_IMPLEMENTED. */
ELIZA_INFERENCE_API int eliza_inference_mmap_evict(EliInferenceContext* ctx,
                                                   const char* region_name, char** out_error);

/* ----------------------------------------------------------------- llm ---- */

/* What one stream generates and how. Zero-initialise it, then set what you need: all-zero means
 * greedy decoding without a cap. 80 bytes; a larger struct of a later ABI begins with these fields
 * and is accepted. Strings are copied during `open`. An empty string is not "unset": pass NULL. */
typedef struct eliza_llm_stream_config_t {
  int32_t max_tokens;   /* tokens per generation; <= 0: no cap */
  float temperature;    /* <= 0: greedy; NaN and infinity are refused */
  float top_p;          /* nucleus mass; outside (0,1): off; NaN is refused */
  int32_t top_k;        /* candidates kept; <= 0: off */
  float repeat_penalty; /* over the last 64 tokens of the sequence; 0 or 1: off; < 0 refused */
  int32_t slot_id;      /* >= 0: names a conversation, like the key; < 0: does not */
  const char* prompt_cache_key; /* names a conversation, or NULL: a closed stream's state is kept in
                                   the context, and the next stream with the same slot_id and key
                                   decodes of its prompt only what differs. Up to 1024 bytes, no
                                   control characters. Results are those without a key */
  int32_t draft_min;            /* fewest tokens worth drafting, 0 to 1024 */
  int32_t draft_max;            /* most tokens drafted per step, 0 to 1024; 0: none, or 8 where a
                                   drafter is named. Without one the model's own MTP head drafts,
                                   else the stream's own tokens do. Output is that without drafts;
                                   where drafting does not pay it pauses */
  const char* mtp_drafter_path; /* drafter model file, or NULL: an MTP, EAGLE3 or DFlash head for
                                   the model, or an ordinary model with the same vocabulary */
  const char* gbnf_grammar;     /* GBNF grammar with a rule named root, or NULL */
  int32_t disable_thinking;     /* nonzero: the model's thinking-start token is never generated */
  int32_t n_gpu_layers;         /* layers to offload; 0: the host's default; < 0: all. Without a GPU
                                   in the build every layer stays on the CPU */
  const char* cache_type_k;     /* KV cache type of the keys, any case: f32 f16 bf16 q8_0 q4_0 q4_1
                                   q5_0 q5_1 iq4_nl; NULL: f16 */
  const char* cache_type_v;     /* the same for the values; quantised ones need flash attention */
} eliza_llm_stream_config_t;

/* 1 when language-model streaming answers, else 0. */
ELIZA_INFERENCE_API int eliza_inference_llm_stream_supported(void);

/* Opens a stream: chooses the backend (environment variable ELIZA_LLM_BACKEND, else what the bundle
 * and the host offer), loads the model if this is its first use, allocates the KV cache.
 * Returns NULL on failure, with nothing leaked. Release with eliza_inference_llm_stream_close. */
ELIZA_INFERENCE_API EliLlmStream* eliza_inference_llm_stream_open(
    EliInferenceContext* ctx, const eliza_llm_stream_config_t* cfg, char** out_error);

/* Appends `num_tokens` (>= 1) prompt tokens and decodes them; a prompt may come in parts. After a
 * final step it opens the next generation on the same sequence, with a fresh max_tokens count. An
 * id outside the vocabulary, or a prompt that does not fit the context, is ELIZA_ERR_INVALID_ARG
 * and leaves the stream as it was. ELIZA_ERR_CANCELLED when cancelled meanwhile; whether the tokens
 * then belong to the sequence is open until a reset. */
ELIZA_INFERENCE_API int eliza_inference_llm_stream_prefill(EliLlmStream* stream,
                                                           const int32_t* token_ids,
                                                           size_t num_tokens, char** out_error);

/* Runs at most one model step and delivers its tokens and text.
 * Returns 0: more to come; 1: final (end of generation, max_tokens, context full) and everything
 * delivered; < 0: error.
 *
 *   tokens_out     [tokens_cap >= 1] receives *num_tokens_out token ids; the end-of-generation
 *                  token is not among them
 *   text_out       [text_cap >= 1 bytes] receives their text. Text may lag behind its tokens: an
 *                  unfinished character waits for its remaining bytes
 *   drafter_*_out  tokens drafted and accepted in this step, 0 without a drafter; may be NULL
 *
 * Nothing is lost: what does not fit comes with the next call, which then runs no model step and
 * may return 0 tokens. When the buffer cannot hold even the next character (up to 4 bytes and the
 * terminator) and there is nothing else to deliver, ELIZA_ERR_INVALID_ARG; call again with a larger
 * one. */
ELIZA_INFERENCE_API int eliza_inference_llm_stream_next(EliLlmStream* stream, int32_t* tokens_out,
                                                        size_t tokens_cap, size_t* num_tokens_out,
                                                        char* text_out, size_t text_cap,
                                                        int32_t* drafter_drafted_out,
                                                        int32_t* drafter_accepted_out,
                                                        char** out_error);

/* Cancels from any thread: a running prefill or next stops inside its step and returns
 * ELIZA_ERR_CANCELLED, and so does every later one until `reset` or `reset_keep`. */
ELIZA_INFERENCE_API int eliza_inference_llm_stream_cancel(EliLlmStream* stream);

/* Writes the stream's tokens and KV cache to `filename` (UTF-8), whole or not at all: on failure
 * (ELIZA_ERR_INVALID_ARG with the reason: no such folder, not a file, read-only, disk full) a file
 * that was there stays as it was. docs/slot-files.md describes the format. */
ELIZA_INFERENCE_API int eliza_inference_llm_stream_save_slot(EliLlmStream* stream,
                                                             const char* filename,
                                                             char** out_error);

/* Replaces the stream's tokens and KV cache by those of a file that save_slot wrote; the next
 * prefill appends to them. Sampler, counters and undelivered output start over as after a reset. A
 * file of another model, context size, KV type or format, or a damaged one, is
 * ELIZA_ERR_INVALID_ARG and leaves the stream as it was. ELIZA_ERR_CANCELLED on a cancelled stream.
 */
ELIZA_INFERENCE_API int eliza_inference_llm_stream_restore_slot(EliLlmStream* stream,
                                                                const char* filename,
                                                                char** out_error);

/* Starts over on the warm stream: empty sequence, sampler and counters as after `open`, undelivered
 * output dropped, cancel cleared. Returns ELIZA_OK or a negative code. */
ELIZA_INFERENCE_API int eliza_inference_llm_stream_reset(EliLlmStream* stream);

/* Like reset, but keeps the first n_keep tokens of the sequence (n_keep < 0 counts as 0). Returns
 * how many were kept: prefill goes on from there. What follows is what a fresh stream gives that
 * prefills the kept tokens and the new ones at once; for that, tokens that were generated, a few
 * before the cut, and all of them where a sliding window has moved past the cut, are decoded again
 * along with the next prefill. */
ELIZA_INFERENCE_API int eliza_inference_llm_stream_reset_keep(EliLlmStream* stream, int32_t n_keep);

/* Closes a stream; no call on it may be running. NULL is ignored. */
ELIZA_INFERENCE_API void eliza_inference_llm_stream_close(EliLlmStream* stream);

/* 1 when speculative decoding (draft_max > 0) is real in this build; 0: such streams decode plainly
 * and report no drafts. */
ELIZA_INFERENCE_API int eliza_inference_llm_mtp_supported(void);

/* 1 when cache_type_k and cache_type_v take quantised types, else 0. */
ELIZA_INFERENCE_API int eliza_inference_llm_kv_quant_supported(void);

/* ------------------------------------------------------------ verifier ---- */

/* One speculative step. Positions count the output tokens of the generation from 0. The arrays are
 * valid during the callback only. */
typedef struct EliVerifierEvent {
  const int* accepted_token_ids; /* [n_accepted] */
  size_t n_accepted;
  int rejected_from;              /* first rejected position, -1 when none was */
  int rejected_to;                /* last rejected position, inclusive; -1 when none was */
  const int* corrected_token_ids; /* [n_corrected] the token at rejected_from instead; none where
                                     the generation ended there or nothing was rejected */
  size_t n_corrected;
} EliVerifierEvent;

/* Called on the generating thread before `next` returns. It may call
 * eliza_inference_llm_stream_cancel and nothing else of this library. The tokens of a step that it
 * cancels are still delivered. */
typedef void (*eliza_verifier_cb)(const EliVerifierEvent* event, void* user_data);

/* Sets the verifier callback of all streams of the context; NULL clears it. Waits for callbacks
 * that run: when it returns, the one before is not called any more. Streams that outlive the
 * context still call the one that it had: clear it before `destroy` where `user_data` goes with the
 * context. ELIZA_ERR_INVALID_ARG from inside a callback. `user_data` is passed through and may be
 * NULL. */
ELIZA_INFERENCE_API int eliza_inference_set_verifier_callback(EliInferenceContext* ctx,
                                                              eliza_verifier_cb cb, void* user_data,
                                                              char** out_error);

/* ----------------------------------------------------------- tokenizer ---- */

/* 1 when tokenize and detokenize answer, else 0. */
ELIZA_INFERENCE_API int eliza_inference_tokenize_supported(void);

/* Turns `text_len` bytes of text (no terminator needed) into token ids of the bundle's text model.
 *
 *   add_special    nonzero: add the start (and end) tokens the model asks for
 *   parse_special  nonzero: spelled-out special tokens such as <|im_end|> become their ids
 *   out_tokens     receives a malloc'ed array, also for 0 tokens; free it with
 *                  eliza_inference_free_tokens
 *   out_n          receives its length */
ELIZA_INFERENCE_API int eliza_inference_tokenize(EliInferenceContext* ctx, const char* text,
                                                 size_t text_len, int add_special,
                                                 int parse_special, int** out_tokens, size_t* out_n,
                                                 char** out_error);

/* Turns token ids back into text. `tokens` may be NULL when n_tokens is 0.
 *
 *   remove_special   nonzero: leave out the start and end tokens that add_special adds
 *   unparse_special  nonzero: spell special tokens out, else they are empty
 *
 * Returns the number of bytes written, terminator excluded. A buffer that is too small is
 * ELIZA_ERR_INVALID_ARG with the needed size in the message, and holds an empty string. */
ELIZA_INFERENCE_API int eliza_inference_detokenize(EliInferenceContext* ctx, const int* tokens,
                                                   size_t n_tokens, int remove_special,
                                                   int unparse_special, char* out_text,
                                                   size_t max_text_bytes, char** out_error);

/* Frees a token array handed out by this library. NULL is ignored. */
ELIZA_INFERENCE_API void eliza_inference_free_tokens(int* tokens);

/* ------------------------------------------------------- text to speech ---- */

/* Receives `n_samples` of mono PCM in [-1,1]; `is_final` is 1 with the last chunk. Nonzero stops.
 */
typedef int (*eliza_tts_chunk_cb)(const float* pcm, size_t n_samples, int is_final,
                                  void* user_data);

/* 1 when streaming synthesis answers, else 0. */
ELIZA_INFERENCE_API int eliza_inference_tts_stream_supported(void);

/* Synthesises `text_len` bytes of text into `out_pcm` [max_samples]; returns the samples written.
 * `speaker_preset_id` may be NULL. */
ELIZA_INFERENCE_API int eliza_inference_tts_synthesize(EliInferenceContext* ctx, const char* text,
                                                       size_t text_len,
                                                       const char* speaker_preset_id,
                                                       float* out_pcm, size_t max_samples,
                                                       char** out_error);

/* The same, chunk by chunk through `on_chunk`. `speaker_preset_id`, `user_data` may be NULL. */
ELIZA_INFERENCE_API int eliza_inference_tts_synthesize_stream(EliInferenceContext* ctx,
                                                              const char* text, size_t text_len,
                                                              const char* speaker_preset_id,
                                                              eliza_tts_chunk_cb on_chunk,
                                                              void* user_data, char** out_error);

/* Stops a running synthesis. */
ELIZA_INFERENCE_API int eliza_inference_cancel_tts(EliInferenceContext* ctx, char** out_error);

/* Encodes reference speech into speaker tokens: `*out_tokens` [*out_K x *out_ref_T], malloc'ed. */
ELIZA_INFERENCE_API int eliza_inference_encode_reference(EliInferenceContext* ctx, const float* pcm,
                                                         size_t n_samples, int sample_rate_hz,
                                                         int* out_K, int* out_ref_T,
                                                         int** out_tokens, char** out_error);

/* ------------------------------------------------------ speech to text ---- */

/* Transcribes `n_samples` of mono PCM in [-1,1]; returns the bytes written to `out_text`. */
ELIZA_INFERENCE_API int eliza_inference_asr_transcribe(EliInferenceContext* ctx, const float* pcm,
                                                       size_t n_samples, int sample_rate_hz,
                                                       char* out_text, size_t max_text_bytes,
                                                       char** out_error);

/* 1 when streaming transcription answers, else 0. */
ELIZA_INFERENCE_API int eliza_inference_asr_stream_supported(void);

/* Opens a transcription stream; NULL on failure. */
ELIZA_INFERENCE_API EliAsrStream* eliza_inference_asr_stream_open(EliInferenceContext* ctx,
                                                                  int sample_rate_hz,
                                                                  char** out_error);

/* Feeds `n_samples` of mono PCM. */
ELIZA_INFERENCE_API int eliza_inference_asr_stream_feed(EliAsrStream* stream, const float* pcm,
                                                        size_t n_samples, char** out_error);

/* The transcript so far. `out_tokens` [*io_n_tokens] may be NULL together with `io_n_tokens`. */
ELIZA_INFERENCE_API int eliza_inference_asr_stream_partial(EliAsrStream* stream, char* out_text,
                                                           size_t max_text_bytes, int* out_tokens,
                                                           size_t* io_n_tokens, char** out_error);

/* Ends the audio; the final transcript, as above. */
ELIZA_INFERENCE_API int eliza_inference_asr_stream_finish(EliAsrStream* stream, char* out_text,
                                                          size_t max_text_bytes, int* out_tokens,
                                                          size_t* io_n_tokens, char** out_error);

/* Closes a transcription stream. NULL is ignored. */
ELIZA_INFERENCE_API void eliza_inference_asr_stream_close(EliAsrStream* stream);

/* ------------------------------------------------ voice activity, wake word ---- */

/* 1 when voice-activity detection answers, else 0. */
ELIZA_INFERENCE_API int eliza_inference_vad_supported(void);

/* Opens a detector; NULL on failure. */
ELIZA_INFERENCE_API EliVad* eliza_inference_vad_open(EliInferenceContext* ctx, int sample_rate_hz,
                                                     char** out_error);

/* The probability of speech in one frame of mono PCM, 0 to 1. */
ELIZA_INFERENCE_API int eliza_inference_vad_process(EliVad* vad, const float* pcm, size_t n_samples,
                                                    float* out_probability, char** out_error);

/* Forgets the audio heard so far. */
ELIZA_INFERENCE_API int eliza_inference_vad_reset(EliVad* vad, char** out_error);

/* Closes a detector. NULL is ignored. */
ELIZA_INFERENCE_API void eliza_inference_vad_close(EliVad* vad);

/* 1 when wake-word detection answers, else 0. */
ELIZA_INFERENCE_API int eliza_inference_wakeword_supported(void);

/* Opens a detector for the wake word `head_name`; NULL on failure. */
ELIZA_INFERENCE_API EliWakeWord* eliza_inference_wakeword_open(EliInferenceContext* ctx,
                                                               int sample_rate_hz,
                                                               const char* head_name,
                                                               char** out_error);

/* The probability that the wake word was just spoken, 0 to 1. */
ELIZA_INFERENCE_API int eliza_inference_wakeword_score(EliWakeWord* wake, const float* pcm,
                                                       size_t n_samples, float* out_probability,
                                                       char** out_error);

/* Forgets the audio heard so far. */
ELIZA_INFERENCE_API int eliza_inference_wakeword_reset(EliWakeWord* wake, char** out_error);

/* Closes a detector. NULL is ignored. */
ELIZA_INFERENCE_API void eliza_inference_wakeword_close(EliWakeWord* wake);

/* --------------------------------------------------- speaker, diarisation ---- */

/* 1 when speaker embedding answers, else 0. */
ELIZA_INFERENCE_API int eliza_inference_speaker_supported(void);

/* Opens a speaker-embedding model; NULL on failure. */
ELIZA_INFERENCE_API EliSpeaker* eliza_inference_speaker_open(EliInferenceContext* ctx,
                                                             const char* gguf_path,
                                                             char** out_error);

/* Writes the embedding of `n_samples` of mono 16 kHz PCM to `out_embedding`. */
ELIZA_INFERENCE_API int eliza_inference_speaker_embed(EliSpeaker* speaker, const float* pcm,
                                                      size_t n_samples, float* out_embedding,
                                                      char** out_error);

/* Frees an embedding handed out by this library. NULL is ignored. */
ELIZA_INFERENCE_API void eliza_inference_speaker_free(float* embedding);

/* Closes a speaker model. NULL is ignored. */
ELIZA_INFERENCE_API void eliza_inference_speaker_close(EliSpeaker* speaker);

/* 1 when diarisation answers, else 0. */
ELIZA_INFERENCE_API int eliza_inference_diariz_supported(void);

/* Opens a diarisation model; NULL on failure. */
ELIZA_INFERENCE_API EliDiariz* eliza_inference_diariz_open(EliInferenceContext* ctx,
                                                           const char* gguf_path, char** out_error);

/* Labels each frame of mono 16 kHz PCM with a speaker: `out_labels` [*io_n_labels]. */
ELIZA_INFERENCE_API int eliza_inference_diariz_segment(EliDiariz* diariz, const float* pcm,
                                                       size_t n_samples, int8_t* out_labels,
                                                       size_t* io_n_labels, char** out_error);

/* Closes a diarisation model. NULL is ignored. */
ELIZA_INFERENCE_API void eliza_inference_diariz_close(EliDiariz* diariz);

/* -------------------------------------------------------------- layout ---- */

/* Consumers write these structs by offset: a moved field corrupts silently, so a build that would
 * move one does not compile. C99 has no static_assert; a negative array size does the same. */
#define ELIZA_ASSERT_LAYOUT_(name, condition) typedef char eliza_layout_##name[(condition) ? 1 : -1]
#define ELIZA_ASSERT_OFFSET_(type, field, offset) \
  ELIZA_ASSERT_LAYOUT_(type##_##field, offsetof(type, field) == (offset))

ELIZA_ASSERT_LAYOUT_(pointer, sizeof(void*) == 8);
ELIZA_ASSERT_LAYOUT_(size_type, sizeof(size_t) == 8);
ELIZA_ASSERT_LAYOUT_(config_size, sizeof(eliza_llm_stream_config_t) == 80);
ELIZA_ASSERT_OFFSET_(eliza_llm_stream_config_t, max_tokens, 0);
ELIZA_ASSERT_OFFSET_(eliza_llm_stream_config_t, temperature, 4);
ELIZA_ASSERT_OFFSET_(eliza_llm_stream_config_t, top_p, 8);
ELIZA_ASSERT_OFFSET_(eliza_llm_stream_config_t, top_k, 12);
ELIZA_ASSERT_OFFSET_(eliza_llm_stream_config_t, repeat_penalty, 16);
ELIZA_ASSERT_OFFSET_(eliza_llm_stream_config_t, slot_id, 20);
ELIZA_ASSERT_OFFSET_(eliza_llm_stream_config_t, prompt_cache_key, 24);
ELIZA_ASSERT_OFFSET_(eliza_llm_stream_config_t, draft_min, 32);
ELIZA_ASSERT_OFFSET_(eliza_llm_stream_config_t, draft_max, 36);
ELIZA_ASSERT_OFFSET_(eliza_llm_stream_config_t, mtp_drafter_path, 40);
ELIZA_ASSERT_OFFSET_(eliza_llm_stream_config_t, gbnf_grammar, 48);
ELIZA_ASSERT_OFFSET_(eliza_llm_stream_config_t, disable_thinking, 56);
ELIZA_ASSERT_OFFSET_(eliza_llm_stream_config_t, n_gpu_layers, 60);
ELIZA_ASSERT_OFFSET_(eliza_llm_stream_config_t, cache_type_k, 64);
ELIZA_ASSERT_OFFSET_(eliza_llm_stream_config_t, cache_type_v, 72);
ELIZA_ASSERT_LAYOUT_(event_size, sizeof(EliVerifierEvent) == 40);
ELIZA_ASSERT_OFFSET_(EliVerifierEvent, accepted_token_ids, 0);
ELIZA_ASSERT_OFFSET_(EliVerifierEvent, n_accepted, 8);
ELIZA_ASSERT_OFFSET_(EliVerifierEvent, rejected_from, 16);
ELIZA_ASSERT_OFFSET_(EliVerifierEvent, rejected_to, 20);
ELIZA_ASSERT_OFFSET_(EliVerifierEvent, corrected_token_ids, 24);
ELIZA_ASSERT_OFFSET_(EliVerifierEvent, n_corrected, 32);

#undef ELIZA_ASSERT_OFFSET_
#undef ELIZA_ASSERT_LAYOUT_

#ifdef __cplusplus
}
#endif

#endif /* ELIZA_INFERENCE_FFI_H */
