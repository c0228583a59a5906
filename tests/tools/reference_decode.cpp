// Greedy decoding straight on llama.cpp's public API: what the library's output is compared with.
//
//   reference_decode MODEL.gguf N_CTX N_BATCH N_PREDICT TOKEN [TOKEN ...]
//
// Prints the generated token ids, space-separated, up to but without the end-of-generation token.
#include <llama.h>

#include <cstdio>
#include <cstdlib>
#include <vector>

int main(int argc, char** argv) {
  if (argc < 6) {
    std::fprintf(stderr, "usage: %s MODEL N_CTX N_BATCH N_PREDICT TOKEN [TOKEN ...]\n", argv[0]);
    return 2;
  }
  llama_log_set([](ggml_log_level, const char*, void*) {}, nullptr);
  llama_backend_init();
  llama_model* model = llama_model_load_from_file(argv[1], llama_model_default_params());
  if (model == nullptr) return 1;

  llama_context_params params = llama_context_default_params();
  params.n_ctx = static_cast<uint32_t>(std::atoi(argv[2]));
  params.n_batch = params.n_ubatch = static_cast<uint32_t>(std::atoi(argv[3]));
  params.n_threads = params.n_threads_batch = 2;
  params.swa_full = false;
  llama_context* context = llama_init_from_model(model, params);
  if (context == nullptr) return 1;

  std::vector<llama_token> prompt;
  for (int i = 5; i < argc; ++i) prompt.push_back(std::atoi(argv[i]));
  for (size_t at = 0; at < prompt.size(); at += params.n_batch) {
    const auto count = static_cast<int32_t>(std::min<size_t>(params.n_batch, prompt.size() - at));
    if (llama_decode(context, llama_batch_get_one(prompt.data() + at, count)) != 0) return 1;
  }
  llama_sampler* sampler = llama_sampler_init_greedy();
  for (int i = 0; i < std::atoi(argv[4]); ++i) {
    llama_token token = llama_sampler_sample(sampler, context, -1);
    if (llama_vocab_is_eog(llama_model_get_vocab(model), token)) break;
    std::printf("%d ", token);
    if (llama_decode(context, llama_batch_get_one(&token, 1)) != 0) return 1;
  }
  std::printf("\n");
  llama_sampler_free(sampler);
  llama_free(context);
  llama_model_free(model);
  return 0;
}
