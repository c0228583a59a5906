/*
 * libelizainference opened at run time: include this instead of eliza-inference-ffi.h, call
 * eliza_load once, and go on as if the program were linked with the library.
 *
 * The functions listed are those that the program uses; add what you need to both lists.
 */
#ifndef ELIZA_DLOPEN_H
#define ELIZA_DLOPEN_H

#include "eliza-inference-ffi.h"

#define ELIZA_FUNCTIONS(FUNCTION)                                                                 \
  FUNCTION(const char*, abi_version, (void))                                                      \
  FUNCTION(EliInferenceContext*, create, (const char*, char**))                                   \
  FUNCTION(void, destroy, (EliInferenceContext*))                                                 \
  FUNCTION(void, free_string, (char*))                                                            \
  FUNCTION(int, llm_stream_supported, (void))                                                     \
  FUNCTION(EliLlmStream*, llm_stream_open,                                                        \
           (EliInferenceContext*, const eliza_llm_stream_config_t*, char**))                      \
  FUNCTION(int, llm_stream_prefill, (EliLlmStream*, const int32_t*, size_t, char**))              \
  FUNCTION(int, llm_stream_next,                                                                  \
           (EliLlmStream*, int32_t*, size_t, size_t*, char*, size_t, int32_t*, int32_t*, char**)) \
  FUNCTION(int, llm_stream_cancel, (EliLlmStream*))                                               \
  FUNCTION(int, llm_stream_save_slot, (EliLlmStream*, const char*, char**))                       \
  FUNCTION(int, llm_stream_restore_slot, (EliLlmStream*, const char*, char**))                    \
  FUNCTION(int, llm_stream_reset, (EliLlmStream*))                                                \
  FUNCTION(int, llm_stream_reset_keep, (EliLlmStream*, int32_t))                                  \
  FUNCTION(void, llm_stream_close, (EliLlmStream*))                                               \
  FUNCTION(int, llm_mtp_supported, (void))                                                        \
  FUNCTION(int, llm_kv_quant_supported, (void))                                                   \
  FUNCTION(int, set_verifier_callback, (EliInferenceContext*, eliza_verifier_cb, void*, char**))  \
  FUNCTION(int, tokenize_supported, (void))                                                       \
  FUNCTION(int, tokenize,                                                                         \
           (EliInferenceContext*, const char*, size_t, int, int, int**, size_t*, char**))         \
  FUNCTION(int, detokenize,                                                                       \
           (EliInferenceContext*, const int*, size_t, int, int, char*, size_t, char**))           \
  FUNCTION(void, free_tokens, (int*))                                                             \
  FUNCTION(int, tts_stream_supported, (void))                                                     \
  FUNCTION(int, asr_transcribe,                                                                   \
           (EliInferenceContext*, const float*, size_t, int, char*, size_t, char**))              \
  FUNCTION(int, asr_stream_supported, (void))                                                     \
  FUNCTION(void, asr_stream_close, (EliAsrStream*))                                               \
  FUNCTION(int, vad_supported, (void))                                                            \
  FUNCTION(void, vad_close, (EliVad*))                                                            \
  FUNCTION(int, wakeword_supported, (void))                                                       \
  FUNCTION(void, wakeword_close, (EliWakeWord*))                                                  \
  FUNCTION(int, speaker_supported, (void))                                                        \
  FUNCTION(void, speaker_close, (EliSpeaker*))                                                    \
  FUNCTION(int, diariz_supported, (void))                                                         \
  FUNCTION(void, diariz_close, (EliDiariz*))

/* A wrong type above does not compile: each function is declared here a second time, and the two
 * declarations of a function must agree. */
#define ELIZA_DECLARE_(result, name, parameters) result eliza_inference_##name parameters;
ELIZA_FUNCTIONS(ELIZA_DECLARE_)
#undef ELIZA_DECLARE_

#define ELIZA_POINTER_(result, name, parameters) result(*name) parameters;
typedef struct ElizaTable {
  ELIZA_FUNCTIONS(ELIZA_POINTER_)
} ElizaTable;
#undef ELIZA_POINTER_

/* Filled by eliza_load. */
extern ElizaTable eliza;

/* Opens the library at `path` and fills `eliza`. Returns NULL, or why it could not: a message that
 * is valid until the next call. The library stays loaded. Call it before other threads start. */
const char* eliza_load(const char* path);

#define eliza_inference_abi_version eliza.abi_version
#define eliza_inference_create eliza.create
#define eliza_inference_destroy eliza.destroy
#define eliza_inference_free_string eliza.free_string
#define eliza_inference_llm_stream_supported eliza.llm_stream_supported
#define eliza_inference_llm_stream_open eliza.llm_stream_open
#define eliza_inference_llm_stream_prefill eliza.llm_stream_prefill
#define eliza_inference_llm_stream_next eliza.llm_stream_next
#define eliza_inference_llm_stream_cancel eliza.llm_stream_cancel
#define eliza_inference_llm_stream_save_slot eliza.llm_stream_save_slot
#define eliza_inference_llm_stream_restore_slot eliza.llm_stream_restore_slot
#define eliza_inference_llm_stream_reset eliza.llm_stream_reset
#define eliza_inference_llm_stream_reset_keep eliza.llm_stream_reset_keep
#define eliza_inference_llm_stream_close eliza.llm_stream_close
#define eliza_inference_llm_mtp_supported eliza.llm_mtp_supported
#define eliza_inference_llm_kv_quant_supported eliza.llm_kv_quant_supported
#define eliza_inference_set_verifier_callback eliza.set_verifier_callback
#define eliza_inference_tokenize_supported eliza.tokenize_supported
#define eliza_inference_tokenize eliza.tokenize
#define eliza_inference_detokenize eliza.detokenize
#define eliza_inference_free_tokens eliza.free_tokens
#define eliza_inference_tts_stream_supported eliza.tts_stream_supported
#define eliza_inference_asr_transcribe eliza.asr_transcribe
#define eliza_inference_asr_stream_supported eliza.asr_stream_supported
#define eliza_inference_asr_stream_close eliza.asr_stream_close
#define eliza_inference_vad_supported eliza.vad_supported
#define eliza_inference_vad_close eliza.vad_close
#define eliza_inference_wakeword_supported eliza.wakeword_supported
#define eliza_inference_wakeword_close eliza.wakeword_close
#define eliza_inference_speaker_supported eliza.speaker_supported
#define eliza_inference_speaker_close eliza.speaker_close
#define eliza_inference_diariz_supported eliza.diariz_supported
#define eliza_inference_diariz_close eliza.diariz_close

#endif /* ELIZA_DLOPEN_H */
