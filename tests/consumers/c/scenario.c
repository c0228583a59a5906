/*
 * The scenario of ../README.md in C.
 *
 * As it stands the program is linked with the library. With -DELIZA_DLOPEN it opens the library at
 * run time and frees messages with plain free; nothing else differs.
 */
#ifdef ELIZA_DLOPEN
#include "eliza_dlopen.h"
#else
#include "eliza-inference-ffi.h"
#endif

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { TOKENS_CAP = 16, TEXT_CAP = 256 };

static const char kPrompt[] = "The capital of France is";
static const char kSmileys[] = "🙂🙃🙂🙃🙂🙃🙂";
static const char kLoop[] = "one two three four one two three four one two";
static const char kMixed[] = "Hello, wörld! 🙂 日本語<|im_end|>";
static const char kAndThen[] = " And then";

static void give_up(const char* what, const char* why) {
  fprintf(stderr, "%s: %s\n", what, why);
  exit(1);
}

static void free_message(char* message) {
#ifdef ELIZA_DLOPEN
  free(message);
#else
  eliza_inference_free_string(message);
#endif
}

/* ---------------------------------------------------------------- json ---- */

/* JSON, written as it comes; `comma` separates the next value from the one before it. */
typedef struct Json {
  FILE* file;
  const char* comma;
} Json;

static void json_begin(Json* json, char bracket) {
  fprintf(json->file, "%s%c", json->comma, bracket);
  json->comma = "";
}

static void json_end(Json* json, char bracket) {
  fputc(bracket, json->file);
  json->comma = ", ";
}

static void json_raw(Json* json, const char* value) {
  fprintf(json->file, "%s%s", json->comma, value);
  json->comma = ", ";
}

static void json_number(Json* json, double value) {
  fprintf(json->file, "%s%.10g", json->comma, value);
  json->comma = ", ";
}

/* The library's text is UTF-8, so only what JSON reserves is escaped. */
static void json_string(Json* json, const char* text) {
  json_begin(json, '"');
  for (const unsigned char* c = (const unsigned char*)text; *c != '\0'; ++c) {
    if (*c < 0x20) {
      fprintf(json->file, "\\u%04x", *c);
    } else {
      if (*c == '"' || *c == '\\') fputc('\\', json->file);
      fputc(*c, json->file);
    }
  }
  json_end(json, '"');
}

static void json_key(Json* json, const char* key) {
  json_string(json, key);
  json->comma = ": ";
}

static void json_ids(Json* json, const int* ids, size_t count) {
  json_begin(json, '[');
  for (size_t i = 0; i < count; ++i) json_number(json, ids[i]);
  json_end(json, ']');
}

/* Writes and frees a failure's message; `reset` and `reset_keep` have none. */
static void json_failure_keys(Json* json, int code, char* message) {
  if (code >= 0) give_up("scenario", "a call succeeded that must fail");
  json_key(json, "code");
  json_number(json, code);
  json_key(json, "message");
  json_string(json, message != NULL ? message : "");
  free_message(message);
}

static void json_failure(Json* json, int code, char* message) {
  json_begin(json, '{');
  json_failure_keys(json, code, message);
  json_end(json, '}');
}

static void json_refusal(Json* json, const void* opened, char* message) {
  if (opened != NULL) give_up("scenario", "a call succeeded that must fail");
  json_begin(json, '{');
  json_key(json, "opened");
  json_raw(json, "false");
  json_key(json, "message");
  json_string(json, message);
  json_end(json, '}');
  free_message(message);
}

/* What a call returned that is expected to succeed. */
static void json_outcome(Json* json, const char* key, int code, char* message) {
  json_key(json, key);
  if (code < 0) {
    json_failure(json, code, message);
  } else {
    json_number(json, code);
  }
}

/* -------------------------------------------------------------- streams ---- */

typedef struct Tokens {
  int* ids;
  size_t count;
} Tokens;

static Tokens tokenize(EliInferenceContext* context, const char* text, int parse_special) {
  Tokens tokens = {NULL, 0};
  char* message = NULL;
  int code = eliza_inference_tokenize(context, text, strlen(text), 1, parse_special, &tokens.ids,
                                      &tokens.count, &message);
  if (code < 0) give_up("tokenize", message);
  return tokens;
}

static const eliza_llm_stream_config_t kUsual = {.max_tokens = 16, .slot_id = -1};

static EliLlmStream* open_stream(EliInferenceContext* context,
                                 const eliza_llm_stream_config_t* config) {
  char* message = NULL;
  EliLlmStream* stream = eliza_inference_llm_stream_open(context, config, &message);
  if (stream == NULL) give_up("open", message);
  return stream;
}

static int prefill(Json* json, EliLlmStream* stream, const int* ids, size_t count) {
  char* message = NULL;
  int code = eliza_inference_llm_stream_prefill(stream, ids, count, &message);
  json_outcome(json, "prefill", code, message);
  return code;
}

/* For where the transcript does not show what prefill returned. */
static void must_prefill(EliLlmStream* stream, Tokens tokens) {
  char* message = NULL;
  int code = eliza_inference_llm_stream_prefill(stream, tokens.ids, tokens.count, &message);
  if (code < 0) give_up("prefill", message);
}

static void must_reset(EliLlmStream* stream) {
  if (eliza_inference_llm_stream_reset(stream) < 0) give_up("reset", "failed");
}

/* Writes one call of next and returns its code. */
static int step(Json* json, EliLlmStream* stream, size_t tokens_cap, size_t text_cap) {
  int32_t tokens[TOKENS_CAP];
  char text[TEXT_CAP];
  size_t count = 0;
  int32_t drafted = 0, accepted = 0;
  char* message = NULL;
  int code = eliza_inference_llm_stream_next(stream, tokens, tokens_cap, &count, text, text_cap,
                                             &drafted, &accepted, &message);
  if (code < 0) {
    json_failure(json, code, message);
    return code;
  }
  json_begin(json, '{');
  json_key(json, "code");
  json_number(json, code);
  json_key(json, "tokens");
  json_ids(json, tokens, count);
  json_key(json, "text");
  json_string(json, text);
  json_key(json, "drafted");
  json_number(json, drafted);
  json_key(json, "accepted");
  json_number(json, accepted);
  json_end(json, '}');
  return code;
}

static void four_steps(Json* json, EliLlmStream* stream) {
  json_key(json, "steps");
  json_begin(json, '[');
  for (int i = 0; i < 4; ++i) step(json, stream, TOKENS_CAP, TEXT_CAP);
  json_end(json, ']');
}

/* The keys of a generation, for an object that may have others. */
static void generation_keys(Json* json, EliLlmStream* stream, const int* ids, size_t count,
                            size_t tokens_cap, size_t text_cap) {
  int code = prefill(json, stream, ids, count);
  json_key(json, "steps");
  json_begin(json, '[');
  while (code == 0) code = step(json, stream, tokens_cap, text_cap);
  json_end(json, ']');
}

static void generate(Json* json, EliLlmStream* stream, Tokens tokens) {
  generation_keys(json, stream, tokens.ids, tokens.count, TOKENS_CAP, TEXT_CAP);
}

static void generate_once(Json* json, EliInferenceContext* context, const char* text,
                          const eliza_llm_stream_config_t* config) {
  Tokens tokens = tokenize(context, text, 0);
  EliLlmStream* stream = open_stream(context, config);
  generate(json, stream, tokens);
  eliza_inference_llm_stream_close(stream);
  eliza_inference_free_tokens(tokens.ids);
}

/* ------------------------------------------------------------- scenario ---- */

static EliInferenceContext* create_context(Json* json, const char* bundle) {
  const struct {
    const char* name;
    int (*supported)(void);
  } probes[] = {
      {"llm_stream", eliza_inference_llm_stream_supported},
      {"llm_mtp", eliza_inference_llm_mtp_supported},
      {"llm_kv_quant", eliza_inference_llm_kv_quant_supported},
      {"tokenize", eliza_inference_tokenize_supported},
      {"tts_stream", eliza_inference_tts_stream_supported},
      {"asr_stream", eliza_inference_asr_stream_supported},
      {"vad", eliza_inference_vad_supported},
      {"wakeword", eliza_inference_wakeword_supported},
      {"speaker", eliza_inference_speaker_supported},
      {"diariz", eliza_inference_diariz_supported},
  };
  const char* missing = "/no/such/bündle-🙂";
  char* message = NULL;

  json_key(json, "version");
  json_string(json, eliza_inference_abi_version());

  json_key(json, "probes");
  json_begin(json, '{');
  for (size_t i = 0; i < sizeof probes / sizeof *probes; ++i) {
    json_key(json, probes[i].name);
    json_number(json, probes[i].supported());
  }
  json_end(json, '}');

  json_key(json, "bad_bundle");
  EliInferenceContext* context = eliza_inference_create(missing, &message);
  json_refusal(json, context, message);
  if (eliza_inference_create(missing, NULL) != NULL) give_up("create", "opened what is not there");

  message = NULL;
  context = eliza_inference_create(bundle, &message);
  if (context == NULL) give_up("create", message);
  return context;
}

static void without_a_stream(Json* json, EliInferenceContext* context) {
  const float silence[4] = {0};
  char text[TEXT_CAP];
  char* message = NULL;

  json_key(json, "voice");
  int code = eliza_inference_asr_transcribe(context, silence, 4, 16000, text, 64, &message);
  json_failure(json, code, message);

  Tokens plain = tokenize(context, kMixed, 0);
  Tokens special = tokenize(context, kMixed, 1);
  json_key(json, "tokenize");
  json_begin(json, '{');
  json_key(json, "plain");
  json_ids(json, plain.ids, plain.count);
  json_key(json, "special");
  json_ids(json, special.ids, special.count);
  json_end(json, '}');

  message = NULL;
  code = eliza_inference_detokenize(context, special.ids, special.count, 0, 1, text, sizeof text,
                                    &message);
  if (code < 0) give_up("detokenize", message);
  json_key(json, "detokenize");
  json_begin(json, '{');
  json_key(json, "size");
  json_number(json, code);
  json_key(json, "text");
  json_string(json, text);
  json_end(json, '}');

  json_key(json, "detokenize_small");
  code = eliza_inference_detokenize(context, special.ids, special.count, 0, 1, text, 4, &message);
  json_failure(json, code, message);

  eliza_inference_free_tokens(plain.ids);
  eliza_inference_free_tokens(special.ids);
}

static void on_one_stream(Json* json, EliInferenceContext* context) {
  EliLlmStream* stream = open_stream(context, &kUsual);
  Tokens prompt = tokenize(context, kPrompt, 0);
  Tokens smileys = tokenize(context, kSmileys, 0);
  Tokens and_then = tokenize(context, kAndThen, 0);
  const int32_t no_such_token = 999999;
  char* message = NULL;

  json_key(json, "first");
  json_begin(json, '{');
  generate(json, stream, prompt);
  json_end(json, '}');

  json_key(json, "again");
  json_begin(json, '{');
  json_outcome(json, "reset", eliza_inference_llm_stream_reset(stream), NULL);
  generate(json, stream, prompt);
  json_end(json, '}');

  json_key(json, "kept");
  json_begin(json, '{');
  json_outcome(json, "reset_keep", eliza_inference_llm_stream_reset_keep(stream, 3), NULL);
  generation_keys(json, stream, prompt.ids + 3, prompt.count - 3, TOKENS_CAP, TEXT_CAP);
  json_end(json, '}');

  json_key(json, "continued");
  json_begin(json, '{');
  generate(json, stream, and_then);
  json_end(json, '}');

  json_key(json, "bad_token");
  int code = eliza_inference_llm_stream_prefill(stream, &no_such_token, 1, &message);
  json_failure(json, code, message);

  json_key(json, "no_token");
  code = eliza_inference_llm_stream_prefill(stream, prompt.ids, 0, &message);
  json_failure(json, code, message);

  must_reset(stream);
  json_key(json, "split");
  json_begin(json, '{');
  generate(json, stream, smileys);
  json_end(json, '}');

  must_reset(stream);
  json_key(json, "tiny");
  json_begin(json, '{');
  generation_keys(json, stream, smileys.ids, smileys.count, 1, 5);
  json_end(json, '}');

  must_reset(stream);
  json_key(json, "cramped");
  json_begin(json, '{');
  generation_keys(json, stream, smileys.ids, smileys.count, TOKENS_CAP, 2);
  json_key(json, "then");
  step(json, stream, TOKENS_CAP, TEXT_CAP);
  json_end(json, '}');

  must_reset(stream);
  must_prefill(stream, prompt);
  for (int i = 0; i < 4; ++i) {
    int32_t tokens[TOKENS_CAP];
    char text[TEXT_CAP];
    size_t count;
    code = eliza_inference_llm_stream_next(stream, tokens, TOKENS_CAP, &count, text, TEXT_CAP, NULL,
                                           NULL, &message);
    if (code < 0) give_up("next", message);
  }
  json_key(json, "saved");
  json_begin(json, '{');
  code = eliza_inference_llm_stream_save_slot(stream, "talk.slot", &message);
  json_outcome(json, "save", code, message);
  EliLlmStream* second = open_stream(context, &kUsual);
  code = eliza_inference_llm_stream_restore_slot(second, "talk.slot", &message);
  json_outcome(json, "restore", code, message);
  generate(json, second, and_then);
  eliza_inference_llm_stream_close(second);
  json_end(json, '}');

  json_key(json, "missing_slot");
  code = eliza_inference_llm_stream_restore_slot(stream, "missing.slot", &message);
  json_failure(json, code, message);

  eliza_inference_llm_stream_close(stream);
  eliza_inference_free_tokens(prompt.ids);
  eliza_inference_free_tokens(smileys.ids);
  eliza_inference_free_tokens(and_then.ids);
}

static void on_verified(const EliVerifierEvent* event, void* user_data) {
  Json* events = user_data;
  json_begin(events, '{');
  json_key(events, "accepted");
  json_ids(events, event->accepted_token_ids, event->n_accepted);
  json_key(events, "rejected_from");
  json_number(events, event->rejected_from);
  json_key(events, "rejected_to");
  json_number(events, event->rejected_to);
  json_key(events, "corrected");
  json_ids(events, event->corrected_token_ids, event->n_corrected);
  json_end(events, '}');
}

static void drafted(Json* json, EliInferenceContext* context) {
  const eliza_llm_stream_config_t config = {.max_tokens = 40,
                                            .slot_id = -1,
                                            .draft_min = 1,
                                            .draft_max = 4,
                                            .cache_type_k = "q8_0",
                                            .cache_type_v = "q8_0"};
  char* written = NULL;
  size_t size = 0;
  Json events = {open_memstream(&written, &size), ""};
  if (events.file == NULL) give_up("open_memstream", "out of memory");
  char* message = NULL;

  if (eliza_inference_set_verifier_callback(context, on_verified, &events, &message) < 0) {
    give_up("set_verifier_callback", message);
  }
  json_key(json, "drafted");
  json_begin(json, '{');
  generate_once(json, context, kLoop, &config);
  /* From here on `events` is not written to: clearing waits for callbacks that run. */
  if (eliza_inference_set_verifier_callback(context, NULL, NULL, &message) < 0) {
    give_up("set_verifier_callback", message);
  }
  fclose(events.file);
  json_key(json, "events");
  json_begin(json, '[');
  json_raw(json, written);
  json_end(json, ']');
  json_end(json, '}');
  free(written);
}

static void configured_streams(Json* json, EliInferenceContext* context) {
  const eliza_llm_stream_config_t sampled = {.max_tokens = 16,
                                             .slot_id = -1,
                                             .temperature = 0.8f,
                                             .top_p = 0.9f,
                                             .top_k = 40,
                                             .repeat_penalty = 1.2f};
  const eliza_llm_stream_config_t grammar = {
      .max_tokens = 16, .slot_id = -1, .gbnf_grammar = "root ::= \" yes\" | \" no\""};
  const eliza_llm_stream_config_t keyed = {
      .max_tokens = 16, .slot_id = 3, .prompt_cache_key = "talk"};
  const eliza_llm_stream_config_t wrong[] = {
      {.max_tokens = 16, .slot_id = -1, .cache_type_k = "q3_9"},
      {.max_tokens = 16, .slot_id = -1, .cache_type_v = "q3_9"},
      {.max_tokens = 16, .slot_id = -1, .mtp_drafter_path = "/no/such/drafter.gguf"},
      {.max_tokens = 16, .slot_id = -1, .gbnf_grammar = "root ::= ("},
  };

  json_key(json, "sampled");
  json_begin(json, '{');
  generate_once(json, context, kPrompt, &sampled);
  json_end(json, '}');

  json_key(json, "grammar");
  json_begin(json, '{');
  generate_once(json, context, kPrompt, &grammar);
  json_end(json, '}');

  json_key(json, "keyed");
  json_begin(json, '[');
  for (int i = 0; i < 2; ++i) {
    json_begin(json, '{');
    generate_once(json, context, kPrompt, &keyed);
    json_end(json, '}');
  }
  json_end(json, ']');

  drafted(json, context);

  json_key(json, "failed_open");
  json_begin(json, '[');
  for (size_t i = 0; i < sizeof wrong / sizeof *wrong; ++i) {
    char* message = NULL;
    EliLlmStream* stream = eliza_inference_llm_stream_open(context, &wrong[i], &message);
    json_refusal(json, stream, message);
  }
  json_end(json, ']');
}

static void selection(Json* json, EliInferenceContext* context) {
  char* message = NULL;

  setenv("ELIZA_LLM_BACKEND", "no-such-runtime", 1);
  EliLlmStream* stream = eliza_inference_llm_stream_open(context, &kUsual, &message);
  if (message != NULL) message[strcspn(message, "\n")] = '\0';
  json_key(json, "hard_select");
  json_refusal(json, stream, message);

  setenv("ELIZA_LLM_BACKEND", "LlamaCpp", 1);
  json_key(json, "selected");
  json_begin(json, '{');
  generate_once(json, context, kPrompt, &kUsual);
  json_end(json, '}');
  unsetenv("ELIZA_LLM_BACKEND");
}

/* A cancel from another thread, 50 ms after it began. */
typedef struct Cancellation {
  EliLlmStream* stream;
  pthread_t thread;
  struct timespec called_at;
} Cancellation;

static void* cancel_after_50_ms(void* argument) {
  Cancellation* cancellation = argument;
  const struct timespec delay = {0, 50 * 1000 * 1000};
  nanosleep(&delay, NULL);
  clock_gettime(CLOCK_MONOTONIC, &cancellation->called_at);
  eliza_inference_llm_stream_cancel(cancellation->stream);
  return NULL;
}

static void begin_cancellation(Cancellation* cancellation, EliLlmStream* stream) {
  cancellation->stream = stream;
  if (pthread_create(&cancellation->thread, NULL, cancel_after_50_ms, cancellation) != 0) {
    give_up("pthread_create", "failed");
  }
}

/* Milliseconds from the call of cancel until now. The thread is gone afterwards: cancel must not
 * run any more when the stream is closed. */
static double end_cancellation(Cancellation* cancellation) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  pthread_join(cancellation->thread, NULL);
  return 1e3 * (double)(now.tv_sec - cancellation->called_at.tv_sec) +
         1e-6 * (double)(now.tv_nsec - cancellation->called_at.tv_nsec);
}

/* Calls next until it fails, writes the code, and returns how long after the cancel that was. */
static double cancel_next(Json* json, EliLlmStream* stream) {
  int32_t tokens[TOKENS_CAP];
  char text[TEXT_CAP];
  size_t count;
  char* message = NULL;
  Cancellation cancellation;
  int code;

  begin_cancellation(&cancellation, stream);
  do {
    code = eliza_inference_llm_stream_next(stream, tokens, TOKENS_CAP, &count, text, TEXT_CAP, NULL,
                                           NULL, &message);
  } while (code >= 0);
  double milliseconds = end_cancellation(&cancellation);
  free_message(message);
  json_key(json, "code");
  json_number(json, code);
  return milliseconds;
}

static double cancel_prefill(Json* json, EliLlmStream* stream, Tokens tokens) {
  char* message = NULL;
  Cancellation cancellation;

  begin_cancellation(&cancellation, stream);
  int code = eliza_inference_llm_stream_prefill(stream, tokens.ids, tokens.count, &message);
  double milliseconds = end_cancellation(&cancellation);
  json_failure_keys(json, code, message);
  return milliseconds;
}

static Tokens tokenize_long(EliInferenceContext* context) {
  enum { TIMES = 2000, LENGTH = 5 };
  char* text = malloc(TIMES * LENGTH + 1);
  if (text == NULL) give_up("malloc", "out of memory");
  for (size_t i = 0; i < TIMES; ++i) memcpy(text + i * LENGTH, "word ", LENGTH + 1);
  Tokens tokens = tokenize(context, text, 0);
  free(text);
  return tokens;
}

/* Destroys the context; its stream outlives it. */
static void cancelled(Json* json, EliInferenceContext* context, double* next_ms,
                      double* prefill_ms) {
  const eliza_llm_stream_config_t endless = {.slot_id = -1};
  EliLlmStream* stream = open_stream(context, &endless);
  Tokens prompt = tokenize(context, kPrompt, 0);
  Tokens loop = tokenize(context, kLoop, 0);
  Tokens lengthy = tokenize_long(context);

  must_prefill(stream, loop);
  json_key(json, "cancel_next");
  json_begin(json, '{');
  *next_ms = cancel_next(json, stream);
  json_key(json, "next");
  step(json, stream, TOKENS_CAP, TEXT_CAP);
  prefill(json, stream, prompt.ids, prompt.count);
  json_outcome(json, "reset", eliza_inference_llm_stream_reset(stream), NULL);
  must_prefill(stream, prompt);
  four_steps(json, stream);
  json_end(json, '}');

  must_reset(stream);
  json_key(json, "cancel_prefill");
  json_begin(json, '{');
  *prefill_ms = cancel_prefill(json, stream, lengthy);
  json_outcome(json, "reset", eliza_inference_llm_stream_reset(stream), NULL);
  must_prefill(stream, prompt);
  four_steps(json, stream);
  json_end(json, '}');

  must_reset(stream);
  must_prefill(stream, prompt);
  eliza_inference_destroy(context);
  json_key(json, "outlived");
  json_begin(json, '{');
  four_steps(json, stream);
  json_end(json, '}');
  eliza_inference_llm_stream_close(stream);

  eliza_inference_free_tokens(prompt.ids);
  eliza_inference_free_tokens(loop.ids);
  eliza_inference_free_tokens(lengthy.ids);
}

static void nulls(Json* json) {
  eliza_inference_destroy(NULL);
  eliza_inference_llm_stream_close(NULL);
  eliza_inference_asr_stream_close(NULL);
  eliza_inference_vad_close(NULL);
  eliza_inference_wakeword_close(NULL);
  eliza_inference_speaker_close(NULL);
  eliza_inference_diariz_close(NULL);
  eliza_inference_free_string(NULL);
  eliza_inference_free_tokens(NULL);
  json_key(json, "nulls");
  json_raw(json, "true");
}

int main(int argc, char** argv) {
  Json json = {stdout, ""};
  double next_ms, prefill_ms;

  if (argc != 3) give_up("usage", "scenario LIBRARY BUNDLE");
#ifdef ELIZA_DLOPEN
  const char* error = eliza_load(argv[1]);
  if (error != NULL) give_up(argv[1], error);
#endif

  json_begin(&json, '{');
  json_key(&json, "transcript");
  json_begin(&json, '{');
  EliInferenceContext* context = create_context(&json, argv[2]);
  without_a_stream(&json, context);
  on_one_stream(&json, context);
  configured_streams(&json, context);
  selection(&json, context);
  cancelled(&json, context, &next_ms, &prefill_ms);
  nulls(&json);
  json_end(&json, '}');

  json_key(&json, "cancel_ms");
  json_begin(&json, '{');
  json_key(&json, "next");
  json_number(&json, next_ms);
  json_key(&json, "prefill");
  json_number(&json, prefill_ms);
  json_end(&json, '}');
  json_end(&json, '}');
  fputc('\n', json.file);
  return 0;
}
