/* Once around the C ABI, in C99 and the system's own calls alone, so that any compiler for any
   system can make it: what scripts/lib/wheel_checks/wine.py compiles for a system that this
   machine only emulates.

   abi_tour LIBRARY BUNDLE FOLDER

   FOLDER, which it writes a stream's state to, and BUNDLE may have any name. Prints one JSON
   object: the library's version, a greedy generation's text and tokens, the tokens once more from
   the saved state, and what the library says to things that must fail. Ends with a stream left
   open. */
#if !defined(_WIN32)
#define _POSIX_C_SOURCE 200809L
#endif

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifdef _WIN32
#include <windows.h>
#else
#include <dlfcn.h>
#endif

#include "eliza-inference-ffi.h"

enum { MOST_TOKENS = 24, TEXT_CAPACITY = 4096 };

static const char prompt[] =
    "<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n";

static struct {
  const char* (*abi_version)(void);
  EliInferenceContext* (*create)(const char*, char**);
  void (*destroy)(EliInferenceContext*);
  void (*free_string)(char*);
  int (*tokenize)(EliInferenceContext*, const char*, size_t, int, int, int**, size_t*, char**);
  void (*free_tokens)(int*);
  EliLlmStream* (*open)(EliInferenceContext*, const eliza_llm_stream_config_t*, char**);
  int (*prefill)(EliLlmStream*, const int32_t*, size_t, char**);
  int (*next)(EliLlmStream*, int32_t*, size_t, size_t*, char*, size_t, int32_t*, int32_t*, char**);
  int (*cancel)(EliLlmStream*);
  int (*reset)(EliLlmStream*);
  int (*save)(EliLlmStream*, const char*, char**);
  int (*restore)(EliLlmStream*, const char*, char**);
  void (*close)(EliLlmStream*);
} abi;

static void fail(const char* what, const char* message) {
  fprintf(stderr, "abi_tour: %s: %s\n", what, message ? message : "no message");
  exit(1);
}

static void check(int ok, const char* what, const char* message) {
  if (!ok) fail(what, message);
}

#ifdef _WIN32
static wchar_t* wide(const char* utf8) {
  const int size = MultiByteToWideChar(CP_UTF8, 0, utf8, -1, NULL, 0);
  wchar_t* const text = malloc((size_t)size * sizeof *text);
  check(text != NULL, "memory", "none left");
  MultiByteToWideChar(CP_UTF8, 0, utf8, -1, text, size);
  return text;
}

static char* utf8(const wchar_t* wide_text) {
  const int size = WideCharToMultiByte(CP_UTF8, 0, wide_text, -1, NULL, 0, NULL, NULL);
  char* const text = malloc((size_t)size);
  check(text != NULL, "memory", "none left");
  WideCharToMultiByte(CP_UTF8, 0, wide_text, -1, text, size, NULL, NULL);
  return text;
}

static void* open_library(const char* path) {
  void* const library = LoadLibraryW(wide(path));
  if (!library) fprintf(stderr, "error %lu\n", GetLastError());
  return library;
}

static void find(void* library, const char* name, void* slot) {
  const FARPROC address = GetProcAddress(library, name);
  check(address != NULL, name, "missing");
  memcpy(slot, &address, sizeof address);
}

static void set_variable(const char* name, const char* value) {
  SetEnvironmentVariableW(wide(name), value ? wide(value) : NULL);
}
#else
static void* open_library(const char* path) {
  void* const library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (!library) fprintf(stderr, "%s\n", dlerror());
  return library;
}

static void find(void* library, const char* name, void* slot) {
  void* const address = dlsym(library, name);
  check(address != NULL, name, "missing");
  memcpy(slot, &address, sizeof address);
}

static void set_variable(const char* name, const char* value) {
  if (value) {
    setenv(name, value, 1);
  } else {
    unsetenv(name);
  }
}
#endif

static void load(const char* path) {
  void* const library = open_library(path);
  check(library != NULL, path, "cannot be loaded");
  find(library, "eliza_inference_abi_version", &abi.abi_version);
  find(library, "eliza_inference_create", &abi.create);
  find(library, "eliza_inference_destroy", &abi.destroy);
  find(library, "eliza_inference_free_string", &abi.free_string);
  find(library, "eliza_inference_tokenize", &abi.tokenize);
  find(library, "eliza_inference_free_tokens", &abi.free_tokens);
  find(library, "eliza_inference_llm_stream_open", &abi.open);
  find(library, "eliza_inference_llm_stream_prefill", &abi.prefill);
  find(library, "eliza_inference_llm_stream_next", &abi.next);
  find(library, "eliza_inference_llm_stream_cancel", &abi.cancel);
  find(library, "eliza_inference_llm_stream_reset", &abi.reset);
  find(library, "eliza_inference_llm_stream_save_slot", &abi.save);
  find(library, "eliza_inference_llm_stream_restore_slot", &abi.restore);
  find(library, "eliza_inference_llm_stream_close", &abi.close);
}

static void print_string(const char* name, const char* text) {
  printf("\"%s\": \"", name);
  for (; *text; text++) {
    if (*text == '"' || *text == '\\') {
      printf("\\%c", *text);
    } else if ((unsigned char)*text < 0x20) {
      printf("\\u%04x", (unsigned)*text);
    } else {
      putchar(*text);
    }
  }
  printf("\", ");
}

static void print_tokens(const char* name, const int32_t* tokens, size_t count) {
  printf("\"%s\": [", name);
  for (size_t i = 0; i < count; i++) printf("%s%d", i ? ", " : "", tokens[i]);
  printf("], ");
}

/* A call that must not fail. The message is read after the call, whatever is evaluated first. */
static void expect(int ok, const char* what, char** error) { check(ok, what, *error); }

/* What the library says to something that must fail; `error` is empty again afterwards. */
static void print_refusal(const char* name, int refused, char** error) {
  check(refused, name, "was not refused");
  check(*error != NULL, name, "was refused without a message");
  print_string(name, *error);
  abi.free_string(*error);
  *error = NULL;
}

static EliInferenceContext* create(const char* bundle) {
  char* error = NULL;
  EliInferenceContext* const context = abi.create(bundle, &error);
  expect(context != NULL, "create", &error);
  return context;
}

static EliLlmStream* try_open(EliInferenceContext* context, char** error) {
  eliza_llm_stream_config_t config;
  memset(&config, 0, sizeof config);
  config.max_tokens = MOST_TOKENS;
  config.slot_id = -1;
  return abi.open(context, &config, error);
}

static EliLlmStream* open_stream(EliInferenceContext* context) {
  char* error = NULL;
  EliLlmStream* const stream = try_open(context, &error);
  expect(stream != NULL, "open", &error);
  return stream;
}

/* Steps to the end; returns how many tokens came. `text` gets what they say. */
static size_t generate(EliLlmStream* stream, int32_t* tokens, char* text) {
  size_t count = 0, length = 0;
  for (int code = 0; code != 1;) {
    int32_t drafted, accepted;
    char *error = NULL, piece[256];
    size_t step = 0;
    check(count < MOST_TOKENS + 1, "next", "more tokens than max_tokens");
    code = abi.next(stream, tokens + count, 1, &step, piece, sizeof piece, &drafted, &accepted,
                    &error);
    expect(code >= 0, "next", &error);
    count += step;
    const size_t size = strlen(piece);
    check(length + size < TEXT_CAPACITY, "next", "more text than expected");
    memcpy(text + length, piece, size + 1);
    length += size;
  }
  return count;
}

static int tour(const char* library, const char* bundle, const char* folder) {
  char *error = NULL, path[4096], text[TEXT_CAPACITY] = "";
  int32_t tokens[MOST_TOKENS + 2];
  load(library);
  printf("{");
  print_string("version", abi.abi_version());

  snprintf(path, sizeof path, "%s/no such bundle", folder);
  print_refusal("missing_bundle", abi.create(path, &error) == NULL, &error);
  print_refusal("not_utf8", abi.create("\xff\xfe", &error) == NULL, &error);

  EliInferenceContext* const context = create(bundle);
  set_variable("ELIZA_LLM_BACKEND", "kein-\xc3\xbc");
  print_refusal("environment", try_open(context, &error) == NULL, &error);
  set_variable("ELIZA_LLM_BACKEND", NULL);

  EliLlmStream* const stream = open_stream(context);
  int* ids = NULL;
  size_t prompt_count = 0;
  expect(abi.tokenize(context, prompt, sizeof prompt - 1, 0, 1, &ids, &prompt_count, &error) >= 0,
         "tokenize", &error);
  print_tokens("prompt", ids, prompt_count);
  expect(abi.prefill(stream, ids, prompt_count, &error) == 0, "prefill", &error);
  /* The second time over a file that is there. */
  snprintf(path, sizeof path, "%s/state.slot", folder);
  for (int i = 0; i < 2; i++) expect(abi.save(stream, path, &error) >= 0, "save_slot", &error);
  size_t count = generate(stream, tokens, text);
  print_tokens("tokens", tokens, count);
  print_string("text", text);

  EliLlmStream* const other = open_stream(context);
  expect(abi.restore(other, path, &error) >= 0, "restore_slot", &error);
  count = generate(other, tokens, text);
  print_tokens("restored", tokens, count);

  const int32_t outside = 1 << 30;
  print_refusal("bad_token", abi.prefill(other, &outside, 1, &error) == ELIZA_ERR_INVALID_ARG,
                &error);
  snprintf(path, sizeof path, "%s/no such folder/state.slot", folder);
  print_refusal("missing_folder", abi.save(other, path, &error) < 0, &error);
  abi.cancel(other);
  print_refusal("cancelled", abi.prefill(other, ids, 1, &error) == ELIZA_ERR_CANCELLED, &error);

  abi.free_tokens(ids);
  abi.close(other);
  abi.destroy(context);
  printf("\"pointer_bytes\": %d}\n", (int)sizeof(void*));
  return 0;
}

int main(int argc, char** argv) {
#ifdef _WIN32
  wchar_t** const wide_arguments = CommandLineToArgvW(GetCommandLineW(), &argc);
  check(argc == 4, "usage", "abi_tour LIBRARY BUNDLE FOLDER");
  for (int i = 1; i < argc; i++) argv[i] = utf8(wide_arguments[i]);
#endif
  check(argc == 4, "usage", "abi_tour LIBRARY BUNDLE FOLDER");
  return tour(argv[1], argv[2], argv[3]);
}
