#include <cstdlib>

#include "ffi/boundary.h"

// The voice families. Consumers bind the whole table at load, so every function exists; none of
// them is in this build.

namespace {

int absent(const char* function, const char* feature, char** out_error) {
  const std::string message = std::string(feature) + " is not in this build";
  eliza::ffi::set_error(out_error, function, message);
  return ELIZA_ERR_NOT_IMPLEMENTED;
}

constexpr char tts[] = "speech synthesis";
constexpr char asr[] = "speech recognition";
constexpr char vad[] = "voice activity detection";
constexpr char wakeword[] = "wake-word detection";
constexpr char speaker[] = "speaker embedding";
constexpr char diariz[] = "diarisation";

}  // namespace

int eliza_inference_tts_synthesize(EliInferenceContext*, const char*, size_t, const char*, float*,
                                   size_t, char** out_error) {
  return absent(__func__, tts, out_error);
}

int eliza_inference_asr_transcribe(EliInferenceContext*, const float*, size_t, int, char*, size_t,
                                   char** out_error) {
  return absent(__func__, asr, out_error);
}

int eliza_inference_tts_stream_supported(void) { return 0; }
int eliza_inference_tts_synthesize_stream(EliInferenceContext*, const char*, size_t, const char*,
                                          eliza_tts_chunk_cb, void*, char** out_error) {
  return absent(__func__, tts, out_error);
}
int eliza_inference_cancel_tts(EliInferenceContext*, char** out_error) {
  return absent(__func__, tts, out_error);
}

int eliza_inference_asr_stream_supported(void) { return 0; }
EliAsrStream* eliza_inference_asr_stream_open(EliInferenceContext*, int, char** out_error) {
  absent(__func__, asr, out_error);
  return nullptr;
}
int eliza_inference_asr_stream_feed(EliAsrStream*, const float*, size_t, char** out_error) {
  return absent(__func__, asr, out_error);
}
int eliza_inference_asr_stream_partial(EliAsrStream*, char*, size_t, int*, size_t*,
                                       char** out_error) {
  return absent(__func__, asr, out_error);
}
int eliza_inference_asr_stream_finish(EliAsrStream*, char*, size_t, int*, size_t*,
                                      char** out_error) {
  return absent(__func__, asr, out_error);
}
void eliza_inference_asr_stream_close(EliAsrStream*) {}

int eliza_inference_vad_supported(void) { return 0; }
EliVad* eliza_inference_vad_open(EliInferenceContext*, int, char** out_error) {
  absent(__func__, vad, out_error);
  return nullptr;
}
int eliza_inference_vad_process(EliVad*, const float*, size_t, float*, char** out_error) {
  return absent(__func__, vad, out_error);
}
int eliza_inference_vad_reset(EliVad*, char** out_error) {
  return absent(__func__, vad, out_error);
}
void eliza_inference_vad_close(EliVad*) {}

int eliza_inference_encode_reference(EliInferenceContext*, const float*, size_t, int, int*, int*,
                                     int**, char** out_error) {
  return absent(__func__, tts, out_error);
}

int eliza_inference_wakeword_supported(void) { return 0; }
EliWakeWord* eliza_inference_wakeword_open(EliInferenceContext*, int, const char*,
                                           char** out_error) {
  absent(__func__, wakeword, out_error);
  return nullptr;
}
int eliza_inference_wakeword_score(EliWakeWord*, const float*, size_t, float*, char** out_error) {
  return absent(__func__, wakeword, out_error);
}
int eliza_inference_wakeword_reset(EliWakeWord*, char** out_error) {
  return absent(__func__, wakeword, out_error);
}
void eliza_inference_wakeword_close(EliWakeWord*) {}

int eliza_inference_speaker_supported(void) { return 0; }
EliSpeaker* eliza_inference_speaker_open(EliInferenceContext*, const char*, char** out_error) {
  absent(__func__, speaker, out_error);
  return nullptr;
}
int eliza_inference_speaker_embed(EliSpeaker*, const float*, size_t, float*, char** out_error) {
  return absent(__func__, speaker, out_error);
}
void eliza_inference_speaker_free(float* embedding) { std::free(embedding); }
void eliza_inference_speaker_close(EliSpeaker*) {}

int eliza_inference_diariz_supported(void) { return 0; }
EliDiariz* eliza_inference_diariz_open(EliInferenceContext*, const char*, char** out_error) {
  absent(__func__, diariz, out_error);
  return nullptr;
}
int eliza_inference_diariz_segment(EliDiariz*, const float*, size_t, int8_t*, size_t*,
                                   char** out_error) {
  return absent(__func__, diariz, out_error);
}
void eliza_inference_diariz_close(EliDiariz*) {}
