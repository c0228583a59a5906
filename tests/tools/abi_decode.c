/* Measures the C ABI as a consumer sees it: the library is opened by path, nothing of it is linked.

   abi_decode LIBRARY BUNDLE load
   abi_decode LIBRARY BUNDLE tokens N_PROMPT N_GEN
   abi_decode LIBRARY BUNDLE speed N_PROMPT N_GEN REPETITIONS TEMPERATURE TOP_K TOP_P
   abi_decode LIBRARY BUNDLE paced N_PROMPT
   abi_decode LIBRARY BUNDLE cancel N_PROMPT REPETITIONS
   abi_decode LIBRARY BUNDLE cycles N
   abi_decode LIBRARY BUNDLE turns N WARM_UP
   abi_decode LIBRARY BUNDLE streams COUNT N_GEN

   Prints one JSON object; `paced` a number for each line that it reads. Times are in milliseconds,
   speeds in tokens per second. */
#define _POSIX_C_SOURCE 200809L

#include <dlfcn.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "eliza-inference-ffi.h"

static struct {
  EliInferenceContext* (*create)(const char*, char**);
  void (*destroy)(EliInferenceContext*);
  int (*tokenize)(EliInferenceContext*, const char*, size_t, int, int, int**, size_t*, char**);
  void (*free_tokens)(int*);
  EliLlmStream* (*open)(EliInferenceContext*, const eliza_llm_stream_config_t*, char**);
  int (*prefill)(EliLlmStream*, const int32_t*, size_t, char**);
  int (*next)(EliLlmStream*, int32_t*, size_t, size_t*, char*, size_t, int32_t*, int32_t*, char**);
  int (*cancel)(EliLlmStream*);
  int (*reset)(EliLlmStream*);
  void (*close)(EliLlmStream*);
} abi;

static const char* library_path;
static const char* bundle;

static void fail(const char* what, const char* message) {
  fprintf(stderr, "abi_decode: %s: %s\n", what, message ? message : "no message");
  exit(1);
}

static void check(int ok, const char* what, const char* message) {
  if (!ok) fail(what, message);
}

static double now_ms(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return (double)time.tv_sec * 1e3 + (double)time.tv_nsec / 1e6;
}

/* A line of /proc/self/status in MB, 0 where there is no such file. */
static double process_mb(const char* field) {
  FILE* file = fopen("/proc/self/status", "r");
  if (!file) return 0;
  char line[256];
  double kilobytes = 0;
  while (fgets(line, sizeof line, file)) {
    if (!strncmp(line, field, strlen(field))) kilobytes = atof(line + strlen(field));
  }
  fclose(file);
  return kilobytes / 1024;
}

static void load(void) {
  void* library = dlopen(library_path, RTLD_NOW | RTLD_LOCAL);
  if (!library) fail("dlopen", dlerror());
  const struct {
    void* slot;
    const char* name;
  } symbols[] = {
      {&abi.create, "eliza_inference_create"},
      {&abi.destroy, "eliza_inference_destroy"},
      {&abi.tokenize, "eliza_inference_tokenize"},
      {&abi.free_tokens, "eliza_inference_free_tokens"},
      {&abi.open, "eliza_inference_llm_stream_open"},
      {&abi.prefill, "eliza_inference_llm_stream_prefill"},
      {&abi.next, "eliza_inference_llm_stream_next"},
      {&abi.cancel, "eliza_inference_llm_stream_cancel"},
      {&abi.reset, "eliza_inference_llm_stream_reset"},
      {&abi.close, "eliza_inference_llm_stream_close"},
  };
  for (size_t i = 0; i < sizeof symbols / sizeof *symbols; i++) {
    void* symbol = dlsym(library, symbols[i].name);
    check(symbol != NULL, symbols[i].name, "missing");
    memcpy(symbols[i].slot, &symbol, sizeof symbol);
  }
}

static EliInferenceContext* create(void) {
  char* error = NULL;
  EliInferenceContext* context = abi.create(bundle, &error);
  check(context != NULL, "create", error);
  return context;
}

static EliLlmStream* open_keyed(EliInferenceContext* context, float temperature, int top_k,
                                float top_p, const char* key) {
  eliza_llm_stream_config_t config;
  memset(&config, 0, sizeof config);
  config.max_tokens = -1;
  config.temperature = temperature;
  config.top_k = top_k;
  config.top_p = top_p;
  config.repeat_penalty = 1.0f;
  config.slot_id = -1;
  config.prompt_cache_key = key;
  char* error = NULL;
  EliLlmStream* stream = abi.open(context, &config, &error);
  check(stream != NULL, "open", error);
  return stream;
}

static EliLlmStream* open_stream(EliInferenceContext* context, float temperature, int top_k,
                                 float top_p) {
  return open_keyed(context, temperature, top_k, top_p, NULL);
}

/* At least `count` token ids of running text. */
static int32_t* prompt(EliInferenceContext* context, size_t count) {
  static const char sentence[] = "The river runs past the old mill, and the children count boats. ";
  const size_t length = (count / 8 + 2) * (sizeof sentence - 1);
  char* text = malloc(length);
  check(text != NULL, "prompt", "out of memory");
  for (size_t i = 0; i < length; i++) text[i] = sentence[i % (sizeof sentence - 1)];
  int* tokens = NULL;
  size_t found = 0;
  char* error = NULL;
  check(abi.tokenize(context, text, length, 0, 0, &tokens, &found, &error) >= 0, "tokenize", error);
  check(found >= count, "tokenize", "fewer tokens than expected");
  free(text);
  return tokens;
}

static void prefill(EliLlmStream* stream, const int32_t* tokens, size_t count) {
  char* error = NULL;
  check(abi.prefill(stream, tokens, count, &error) == 0, "prefill", error);
}

/* One step; true on the final one. */
static bool next(EliLlmStream* stream) {
  int32_t tokens[8], drafted, accepted;
  char text[256], *error = NULL;
  size_t count;
  const int code =
      abi.next(stream, tokens, 8, &count, text, sizeof text, &drafted, &accepted, &error);
  check(code >= 0, "next", error);
  return code == 1;
}

/* Time of n_gen steps. Where the model ends its text, `another` token makes it go on, off the
 * clock. */
static double decode_ms(EliLlmStream* stream, int n_gen, int32_t another) {
  double spent = 0;
  for (int steps = 0; steps < n_gen;) {
    const double start = now_ms();
    if (next(stream)) {
      prefill(stream, &another, 1);
    } else {
      spent += now_ms() - start;
      steps++;
    }
  }
  return spent;
}

static void print_list(const char* name, const double* values, int count) {
  printf(", \"%s\": [", name);
  for (int i = 0; i < count; i++) printf("%s%.4f", i ? ", " : "", values[i]);
  printf("]");
}

/* From nothing to a context; no model. */
static void measure_load(void) {
  const double start = now_ms();
  load();
  const double loaded = now_ms();
  EliInferenceContext* context = create();
  const double created = now_ms();
  abi.destroy(context);
  printf("{\"load_ms\": %.3f, \"create_ms\": %.3f}\n", loaded - start, created - loaded);
}

/* Greedy tokens, up to the end of the generation. */
static void print_tokens(int n_prompt, int n_gen) {
  EliInferenceContext* context = create();
  EliLlmStream* stream = open_stream(context, 0, 0, 0);
  int32_t* const given = prompt(context, (size_t)n_prompt);
  prefill(stream, given, (size_t)n_prompt);
  printf("{\"tokens\": [");
  for (int i = 0; i < n_gen; i++) {
    int32_t token, drafted, accepted;
    char text[256], *error = NULL;
    size_t count = 0;
    const int code =
        abi.next(stream, &token, 1, &count, text, sizeof text, &drafted, &accepted, &error);
    check(code >= 0, "next", error);
    if (count) printf("%s%d", i ? ", " : "", token);
    if (code == 1) break;
  }
  printf("]}\n");
  abi.close(stream);
  abi.free_tokens(given);
  abi.destroy(context);
}

static void measure_speed(int n_prompt, int n_gen, int repetitions, float temperature, int top_k,
                          float top_p) {
  double* const prefill_speed = calloc((size_t)repetitions * 3, sizeof(double));
  check(prefill_speed != NULL, "speed", "out of memory");
  double* const first_token = prefill_speed + repetitions;
  double* const decode_speed = first_token + repetitions;

  double start = now_ms();
  EliInferenceContext* context = create();
  EliLlmStream* stream = open_stream(context, temperature, top_k, top_p);
  const double cold_open = now_ms() - start;
  int32_t* const tokens = prompt(context, (size_t)n_prompt);
  prefill(stream, tokens, 1);
  next(stream);
  const double cold_first_token = now_ms() - start;

  for (int i = 0; i < repetitions; i++) {
    abi.reset(stream);
    start = now_ms();
    prefill(stream, tokens, (size_t)n_prompt);
    const double prefilled = now_ms();
    next(stream);
    first_token[i] = now_ms() - start;
    prefill_speed[i] = n_prompt * 1e3 / (prefilled - start);

    abi.reset(stream);
    prefill(stream, tokens, 1);
    decode_speed[i] = n_gen * 1e3 / decode_ms(stream, n_gen, tokens[1]);
  }

  start = now_ms();
  abi.close(open_stream(context, temperature, top_k, top_p));
  const double warm_open_close = now_ms() - start;
  abi.close(stream);
  abi.free_tokens(tokens);
  abi.destroy(context);

  printf("{\"cold_open_ms\": %.3f, \"cold_first_token_ms\": %.3f, \"open_close_ms\": %.3f",
         cold_open, cold_first_token, warm_open_close);
  printf(", \"peak_mb\": %.1f", process_mb("VmHWM:"));
  print_list("prefill", prefill_speed, repetitions);
  print_list("first_token_ms", first_token, repetitions);
  print_list("decode", decode_speed, repetitions);
  printf("}\n");
  free(prefill_speed);
}

/* A line of standard input is a number of tokens to generate, or 0 for a prefill: so two processes
 * can take turns. */
static void measure_paced(int n_prompt) {
  EliInferenceContext* context = create();
  EliLlmStream* stream = open_stream(context, 0, 0, 0);
  int32_t* const tokens = prompt(context, (size_t)n_prompt);
  char line[32];
  while (fgets(line, sizeof line, stdin)) {
    const int n_gen = atoi(line);
    abi.reset(stream);
    const double start = now_ms();
    prefill(stream, tokens, n_gen ? 1 : (size_t)n_prompt);
    printf("%.4f\n", n_gen ? decode_ms(stream, n_gen, tokens[1]) : now_ms() - start);
    fflush(stdout);
  }
  abi.close(stream);
  abi.free_tokens(tokens);
  abi.destroy(context);
}

struct running {
  EliLlmStream* stream;
  const int32_t* tokens;
  size_t count;
  bool generates;
  int code;
  double returned;
};

/* Runs until it is cancelled, if it is in time. */
static void* run_stream(void* argument) {
  struct running* run = argument;
  char* error = NULL;
  run->code = abi.prefill(run->stream, run->tokens, run->count, &error);
  while (run->generates && run->code >= 0) {
    int32_t tokens[8], drafted, accepted;
    char text[256];
    size_t count;
    run->code =
        abi.next(run->stream, tokens, 8, &count, text, sizeof text, &drafted, &accepted, &error);
    /* Where the model ends its text, another token makes it go on. */
    if (run->code == 1) run->code = abi.prefill(run->stream, run->tokens, 1, &error);
  }
  run->returned = now_ms();
  free(error);
  return NULL;
}

/* From the call of cancel to the return of what another thread runs, `earliest` milliseconds after
 * its start or later, at a different place each time. */
static double cancelled_after(EliLlmStream* stream, const int32_t* tokens, size_t count,
                              bool generates, int earliest, int number) {
  abi.reset(stream);
  struct running run = {stream, tokens, count, generates, 0, 0};
  pthread_t thread;
  check(pthread_create(&thread, NULL, run_stream, &run) == 0, "cancel", "no thread");
  const struct timespec pause = {0, (earliest + 97 * (number % 7)) * 1000000L};
  nanosleep(&pause, NULL);
  const double cancelled = now_ms();
  abi.cancel(stream);
  pthread_join(thread, NULL);
  check(run.code == ELIZA_ERR_CANCELLED, "cancel", "the call had ended before it was cancelled");
  return run.returned - cancelled;
}

static void measure_cancel(int n_prompt, int repetitions) {
  EliInferenceContext* context = create();
  EliLlmStream* stream = open_stream(context, 0, 0, 0);
  int32_t* const tokens = prompt(context, (size_t)(n_prompt + repetitions));
  double* const in_prefill = calloc((size_t)repetitions * 2, sizeof(double));
  check(in_prefill != NULL, "cancel", "out of memory");
  double* const in_next = in_prefill + repetitions;
  for (int i = 0; i < repetitions; i++) {
    /* Begun at another token each time: nothing is left to reuse. */
    in_prefill[i] = cancelled_after(stream, tokens + i, (size_t)n_prompt, false, 200, i);
    in_next[i] = cancelled_after(stream, tokens, 16, true, 150, i);
  }
  abi.reset(stream);
  prefill(stream, tokens, 16);
  next(stream);
  const double step = decode_ms(stream, 32, tokens[0]) / 32;
  abi.close(stream);
  abi.free_tokens(tokens);
  abi.destroy(context);
  printf("{\"repetitions\": %d, \"step_ms\": %.4f", repetitions, step);
  print_list("cancel_ms", in_prefill, repetitions);
  print_list("cancel_next_ms", in_next, repetitions);
  printf("}\n");
  free(in_prefill);
}

static void measure_cycles(int n) {
  EliInferenceContext* context = create();
  int32_t* const tokens = prompt(context, 4);
  const int warm_up = 50;
  double before = 0;
  for (int i = -warm_up; i < n; i++) {
    if (i == 0) before = process_mb("VmRSS:");
    EliLlmStream* stream = open_stream(context, 0, 0, 0);
    prefill(stream, tokens, 4);
    next(stream);
    abi.close(stream);
  }
  printf("{\"cycles\": %d, \"rss_growth_mb\": %.3f}\n", n, process_mb("VmRSS:") - before);
  abi.free_tokens(tokens);
  abi.destroy(context);
}

/* Memory after many short turns: every other one without a prompt-cache key, the rest with one of a
 * few keys or with a key of its own. */
static void measure_turns(int n, int warm_up) {
  EliInferenceContext* context = create();
  int32_t* const tokens = prompt(context, 32);
  double before = 0;
  for (int i = -warm_up; i < n; i++) {
    if (i == 0) before = process_mb("VmRSS:");
    char key[32];
    const int turn = i + warm_up;
    snprintf(key, sizeof key, turn % 4 == 1 ? "often-%d" : "once-%d",
             turn % 4 == 1 ? turn % 12 : turn);
    EliLlmStream* stream = open_keyed(context, 0, 0, 0, turn % 2 ? key : NULL);
    prefill(stream, tokens + turn % 12, 16);
    for (int step = 0; step < 8 && !next(stream); step++) {
    }
    abi.close(stream);
  }
  printf("{\"turns\": %d, \"rss_growth_mb\": %.3f, \"peak_mb\": %.1f}\n", n,
         process_mb("VmRSS:") - before, process_mb("VmHWM:"));
  abi.free_tokens(tokens);
  abi.destroy(context);
}

enum { MOST_STREAMS = 64 };

static struct {
  pthread_mutex_t lock;
  pthread_cond_t go;
  bool started;
} start_line = {PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, false};

struct runner {
  EliLlmStream* stream;
  int32_t another;
  int n_gen;
  double* step_ended;
};

static void* decode_with_others(void* argument) {
  const struct runner* self = argument;
  pthread_mutex_lock(&start_line.lock);
  while (!start_line.started) pthread_cond_wait(&start_line.go, &start_line.lock);
  pthread_mutex_unlock(&start_line.lock);
  for (int i = 0; i < self->n_gen; i++) {
    decode_ms(self->stream, 1, self->another);
    self->step_ended[i] = now_ms();
  }
  return NULL;
}

/* `count` streams of one context, each on its own thread. */
static void measure_streams(int count, int n_gen) {
  check(count > 0 && count <= MOST_STREAMS && n_gen > 0, "streams", "counts out of range");
  double* const ended = calloc((size_t)count * (size_t)n_gen, sizeof(double));
  check(ended != NULL, "streams", "out of memory");
  EliInferenceContext* context = create();
  int32_t* const tokens = prompt(context, 16 + MOST_STREAMS);
  struct runner runners[MOST_STREAMS];
  pthread_t threads[MOST_STREAMS];
  for (int i = 0; i < count; i++) {
    runners[i].stream = open_stream(context, 0, 0, 0);
    runners[i].another = tokens[i];
    runners[i].n_gen = n_gen;
    runners[i].step_ended = ended + (size_t)i * (size_t)n_gen;
    prefill(runners[i].stream, tokens + i, 16);
    next(runners[i].stream);
    check(pthread_create(&threads[i], NULL, decode_with_others, &runners[i]) == 0, "streams",
          "no thread");
  }
  pthread_mutex_lock(&start_line.lock);
  start_line.started = true;
  const double start = now_ms();
  pthread_cond_broadcast(&start_line.go);
  pthread_mutex_unlock(&start_line.lock);

  double first_end = 0, last_end = 0;
  for (int i = 0; i < count; i++) {
    pthread_join(threads[i], NULL);
    const double end = runners[i].step_ended[n_gen - 1];
    if (i == 0 || end < first_end) first_end = end;
    if (end > last_end) last_end = end;
  }
  int fewest = n_gen;
  for (int i = 0; i < count; i++) {
    int steps = 0;
    while (steps < n_gen && runners[i].step_ended[steps] <= first_end) steps++;
    if (steps < fewest) fewest = steps;
    abi.close(runners[i].stream);
  }
  printf("{\"total_tps\": %.3f, \"fairness\": %.4f, \"peak_mb\": %.1f}\n",
         count * n_gen * 1e3 / (last_end - start), (double)fewest / n_gen, process_mb("VmHWM:"));
  abi.free_tokens(tokens);
  abi.destroy(context);
  free(ended);
}

int main(int argc, char** argv) {
  check(argc > 3, "usage", "see the top of abi_decode.c");
  library_path = argv[1];
  bundle = argv[2];
  if (!strcmp(argv[3], "load") && argc == 4) {
    measure_load();
    return 0;
  }
  load();
  if (!strcmp(argv[3], "tokens") && argc == 6) {
    print_tokens(atoi(argv[4]), atoi(argv[5]));
  } else if (!strcmp(argv[3], "speed") && argc == 10) {
    measure_speed(atoi(argv[4]), atoi(argv[5]), atoi(argv[6]), (float)atof(argv[7]), atoi(argv[8]),
                  (float)atof(argv[9]));
  } else if (!strcmp(argv[3], "paced") && argc == 5) {
    measure_paced(atoi(argv[4]));
  } else if (!strcmp(argv[3], "cancel") && argc == 6) {
    measure_cancel(atoi(argv[4]), atoi(argv[5]));
  } else if (!strcmp(argv[3], "cycles") && argc == 5) {
    measure_cycles(atoi(argv[4]));
  } else if (!strcmp(argv[3], "turns") && argc == 6) {
    measure_turns(atoi(argv[4]), atoi(argv[5]));
  } else if (!strcmp(argv[3], "streams") && argc == 6) {
    measure_streams(atoi(argv[4]), atoi(argv[5]));
  } else {
    fail("usage", "see the top of abi_decode.c");
  }
  return 0;
}
