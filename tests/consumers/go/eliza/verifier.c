#include "_cgo_export.h"

/* A cgo.Handle is a number, no address: Go sees it as one, the library as its user_data. */
static void verified(const EliVerifierEvent* event, void* user_data) {
  elizaVerified((EliVerifierEvent*)event, (uintptr_t)user_data);
}

int set_verifier(EliInferenceContext* ctx, uintptr_t verifier, char** out_error) {
  return eliza_inference_set_verifier_callback(ctx, verifier != 0 ? verified : NULL,
                                               (void*)verifier, out_error);
}
