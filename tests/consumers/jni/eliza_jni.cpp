// The C++ half of eliza/Eliza.java: its native methods, each around one call of libelizainference.
//
// Text crosses as byte[] in UTF-8. JNI's own strings are modified UTF-8, in which an emoji is two
// surrogates of three bytes each: NewStringUTF and GetStringUTFChars would break it both ways.
// Arrays are copied, never pinned with GetPrimitiveArrayCritical: most calls here run a model, and
// a pinned array holds up the garbage collector.

#include <jni.h>

#include <cstdint>
#include <cstdlib>
#include <exception>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "eliza-inference-ffi.h"

namespace {

// Looked up once, in JNI_OnLoad: there FindClass has the class loader of the Java half.
struct Java {
  JavaVM* machine;
  jclass exception;
  jmethodID new_exception;
  jclass eliza;
  jmethodID verified;
  jmethodID step;
} java;

// What the library refused; becomes an ElizaException.
struct Refused {
  int code;
  std::string message;
};

// A Java exception is pending: back to Java with it.
struct Pending {};

struct Free {
  void operator()(void* memory) const { std::free(memory); }
};

// The out_error of one call. Its message comes from malloc.
class Message {
 public:
  Message() = default;
  Message(const Message&) = delete;
  Message& operator=(const Message&) = delete;
  ~Message() { std::free(text_); }

  char** out() { return &text_; }

  int check(int code) const {
    if (code < 0) throw Refused{code, text()};
    return code;
  }

  template <typename Handle>
  jlong check(Handle* handle) const {
    if (handle == nullptr) throw Refused{0, text()};
    return reinterpret_cast<jlong>(handle);
  }

 private:
  std::string text() const { return text_ == nullptr ? "" : text_; }

  char* text_ = nullptr;
};

EliInferenceContext* context_of(jlong handle) {
  return reinterpret_cast<EliInferenceContext*>(handle);
}

EliLlmStream* stream_of(jlong handle) { return reinterpret_cast<EliLlmStream*>(handle); }

// A byte[] as a C string; a null one as NULL.
class Text {
 public:
  Text(JNIEnv* env, jbyteArray utf8) : is_null_(utf8 == nullptr) {
    if (is_null_) return;
    text_.resize(static_cast<size_t>(env->GetArrayLength(utf8)));
    env->GetByteArrayRegion(utf8, 0, static_cast<jsize>(text_.size()),
                            reinterpret_cast<jbyte*>(&text_[0]));
  }

  const char* get() const { return is_null_ ? nullptr : text_.c_str(); }
  size_t size() const { return text_.size(); }

 private:
  bool is_null_;
  std::string text_;
};

// What JNI returned; NULL means that a Java exception is pending.
template <typename Reference>
Reference made(Reference reference) {
  if (reference == nullptr) throw Pending();
  return reference;
}

[[noreturn]] void throw_java(JNIEnv* env, const char* type, const char* message) {
  env->ThrowNew(env->FindClass(type), message);
  throw Pending();
}

// Of an array: the Java half names the argument that is null, this keeps the glue safe without it.
template <typename Array>
Array required(JNIEnv* env, Array array) {
  if (array == nullptr) throw_java(env, "java/lang/NullPointerException", "an array is null");
  return array;
}

// An int[] or float[]. With an element to spare: the data of an empty vector may be NULL.
template <typename Element>
struct Elements {
  size_t size;
  std::vector<Element> storage;

  template <typename Array>
  Elements(JNIEnv* env, Array array, void (JNIEnv::*copy)(Array, jsize, jsize, Element*)) {
    const jsize length = env->GetArrayLength(required(env, array));
    size = static_cast<size_t>(length);
    storage.resize(size + 1);
    (env->*copy)(array, 0, length, storage.data());
  }

  const Element* data() const { return storage.data(); }
};

Elements<jint> ints_of(JNIEnv* env, jintArray array) {
  return {env, array, &JNIEnv::GetIntArrayRegion};
}

jintArray new_ints(JNIEnv* env, const int32_t* values, size_t count) {
  const jsize size = static_cast<jsize>(count);
  const jintArray array = made(env->NewIntArray(size));
  env->SetIntArrayRegion(array, 0, size, values);
  return array;
}

jbyteArray new_bytes(JNIEnv* env, const char* utf8, size_t length) {
  const jsize size = static_cast<jsize>(length);
  const jbyteArray array = made(env->NewByteArray(size));
  env->SetByteArrayRegion(array, 0, size, reinterpret_cast<const jbyte*>(utf8));
  return array;
}

jbyteArray new_bytes(JNIEnv* env, const std::string& utf8) {
  return new_bytes(env, utf8.data(), utf8.size());
}

// ---------------------------------------------------------------------------- the library

jbyteArray abi_version(JNIEnv* env) { return new_bytes(env, eliza_inference_abi_version()); }

jboolean supported(JNIEnv* env, jbyteArray family) {
  static const struct {
    const char* family;
    int (*supported)();
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
  const Text wanted(env, required(env, family));
  for (const auto& probe : probes) {
    if (std::string(probe.family) == wanted.get()) return probe.supported() != 0;
  }
  throw_java(env, "java/lang/IllegalArgumentException", "family: there is none of that name");
}

void set_environment(JNIEnv* env, jbyteArray name, jbyteArray value) {
  const Text variable(env, required(env, name));
  const Text content(env, value);
  const int failed = content.get() == nullptr ? unsetenv(variable.get())
                                              : setenv(variable.get(), content.get(), 1);
  if (failed != 0) throw_java(env, "java/lang/IllegalArgumentException", "not a variable's name");
}

void release_nulls(JNIEnv*) {
  eliza_inference_destroy(nullptr);
  eliza_inference_llm_stream_close(nullptr);
  eliza_inference_asr_stream_close(nullptr);
  eliza_inference_vad_close(nullptr);
  eliza_inference_wakeword_close(nullptr);
  eliza_inference_speaker_close(nullptr);
  eliza_inference_diariz_close(nullptr);
  eliza_inference_free_string(nullptr);
  eliza_inference_free_tokens(nullptr);
}

// --------------------------------------------------------------------------- the context

jboolean is_bundle(JNIEnv* env, jbyteArray folder) {
  EliInferenceContext* const context = eliza_inference_create(Text(env, folder).get(), nullptr);
  eliza_inference_destroy(context);
  return context != nullptr;
}

jlong create(JNIEnv* env, jbyteArray bundle) {
  Message error;
  return error.check(eliza_inference_create(Text(env, bundle).get(), error.out()));
}

void destroy(JNIEnv*, jlong context) { eliza_inference_destroy(context_of(context)); }

jintArray tokenize(JNIEnv* env, jlong context, jbyteArray text, jboolean add, jboolean parse) {
  const Text utf8(env, text);
  Message error;
  int* tokens = nullptr;
  size_t count = 0;
  error.check(eliza_inference_tokenize(context_of(context), utf8.get(), utf8.size(), add, parse,
                                       &tokens, &count, error.out()));
  const std::unique_ptr<int, Free> owner(tokens);
  return new_ints(env, tokens, count);
}

jbyteArray detokenize(JNIEnv* env, jlong context, jintArray tokens, jboolean remove,
                      jboolean unparse, jint capacity) {
  const Elements<jint> ids = ints_of(env, tokens);
  std::vector<char> text(static_cast<size_t>(capacity));
  Message error;
  const int size =
      error.check(eliza_inference_detokenize(context_of(context), ids.data(), ids.size, remove,
                                             unparse, text.data(), text.size(), error.out()));
  return new_bytes(env, text.data(), static_cast<size_t>(size));
}

jbyteArray transcribe(JNIEnv* env, jlong context, jfloatArray pcm, jint sample_rate,
                      jint capacity) {
  const Elements<jfloat> samples(env, pcm, &JNIEnv::GetFloatArrayRegion);
  std::vector<char> text(static_cast<size_t>(capacity));
  Message error;
  const int size = error.check(
      eliza_inference_asr_transcribe(context_of(context), samples.data(), samples.size, sample_rate,
                                     text.data(), text.size(), error.out()));
  return new_bytes(env, text.data(), static_cast<size_t>(size));
}

// The verifier callback; user_data is a global reference to the Java listener. It runs inside
// `next`, on the thread that called it: a Java thread, so GetEnv finds it attached. Where C++ calls
// `next` on a thread of its own, that thread has to AttachCurrentThread first, once, and to
// DetachCurrentThread before it ends.
void verified(const EliVerifierEvent* event, void* listener) {
  void* attached = nullptr;
  if (java.machine->GetEnv(&attached, JNI_VERSION_1_6) != JNI_OK) return;
  JNIEnv* const env = static_cast<JNIEnv*>(attached);
  try {
    const jintArray accepted = new_ints(env, event->accepted_token_ids, event->n_accepted);
    const jintArray corrected = new_ints(env, event->corrected_token_ids, event->n_corrected);
    env->CallStaticVoidMethod(java.eliza, java.verified, static_cast<jobject>(listener), accepted,
                              static_cast<jint>(event->rejected_from),
                              static_cast<jint>(event->rejected_to), corrected);
    env->DeleteLocalRef(corrected);
    env->DeleteLocalRef(accepted);
  } catch (const Pending&) {
  }
  // The Java half catches what listeners throw; what is left is a failure of the virtual machine.
  // It must not stay pending: `next` goes on, and with it calls of JNI that are undefined then.
  if (env->ExceptionCheck()) {
    env->ExceptionDescribe();
    env->ExceptionClear();
  }
}

// Returns the reference that the next call takes as `previous`.
jlong set_listener(JNIEnv* env, jlong context, jobject listener, jlong previous) {
  const jobject reference = listener == nullptr ? nullptr : env->NewGlobalRef(listener);
  Message error;
  const int code = eliza_inference_set_verifier_callback(
      context_of(context), reference == nullptr ? nullptr : verified, reference, error.out());
  // The library has waited for the calls of the one that it lets go.
  env->DeleteGlobalRef(code < 0 ? reference : reinterpret_cast<jobject>(previous));
  error.check(code);
  return reinterpret_cast<jlong>(reference);
}

// ---------------------------------------------------------------------------- the stream

jlong open_stream(JNIEnv* env, jlong context, jint max_tokens, jfloat temperature, jfloat top_p,
                  jint top_k, jfloat repeat_penalty, jint slot_id, jbyteArray prompt_cache_key,
                  jint draft_min, jint draft_max, jbyteArray mtp_drafter_path,
                  jbyteArray gbnf_grammar, jboolean disable_thinking, jint gpu_layers,
                  jbyteArray cache_type_k, jbyteArray cache_type_v) {
  const Text key(env, prompt_cache_key);
  const Text drafter(env, mtp_drafter_path);
  const Text grammar(env, gbnf_grammar);
  const Text type_k(env, cache_type_k);
  const Text type_v(env, cache_type_v);
  eliza_llm_stream_config_t config = {};
  config.max_tokens = max_tokens;
  config.temperature = temperature;
  config.top_p = top_p;
  config.top_k = top_k;
  config.repeat_penalty = repeat_penalty;
  config.slot_id = slot_id;
  config.prompt_cache_key = key.get();
  config.draft_min = draft_min;
  config.draft_max = draft_max;
  config.mtp_drafter_path = drafter.get();
  config.gbnf_grammar = grammar.get();
  config.disable_thinking = disable_thinking;
  config.n_gpu_layers = gpu_layers;
  config.cache_type_k = type_k.get();
  config.cache_type_v = type_v.get();
  Message error;
  return error.check(eliza_inference_llm_stream_open(context_of(context), &config, error.out()));
}

void prefill(JNIEnv* env, jlong stream, jintArray tokens) {
  const Elements<jint> ids = ints_of(env, tokens);
  Message error;
  error.check(
      eliza_inference_llm_stream_prefill(stream_of(stream), ids.data(), ids.size, error.out()));
}

jobject next(JNIEnv* env, jlong stream, jint token_capacity, jint text_capacity) {
  std::vector<int32_t> tokens(static_cast<size_t>(token_capacity));
  std::vector<char> text(static_cast<size_t>(text_capacity));
  size_t count = 0;
  int32_t drafted = 0;
  int32_t accepted = 0;
  Message error;
  const int code = error.check(
      eliza_inference_llm_stream_next(stream_of(stream), tokens.data(), tokens.size(), &count,
                                      text.data(), text.size(), &drafted, &accepted, error.out()));
  const jintArray ids = new_ints(env, tokens.data(), count);
  const jbyteArray utf8 = new_bytes(env, text.data());
  return env->CallStaticObjectMethod(java.eliza, java.step, static_cast<jboolean>(code == 1), ids,
                                     utf8, static_cast<jint>(drafted), static_cast<jint>(accepted));
}

// These three have no out_error: they fail on a NULL stream alone.
void cancel(JNIEnv*, jlong stream) { eliza_inference_llm_stream_cancel(stream_of(stream)); }

void reset(JNIEnv*, jlong stream) {
  Message().check(eliza_inference_llm_stream_reset(stream_of(stream)));
}

jint reset_keep(JNIEnv*, jlong stream, jint count) {
  return Message().check(eliza_inference_llm_stream_reset_keep(stream_of(stream), count));
}

void save_slot(JNIEnv* env, jlong stream, jbyteArray file) {
  Message error;
  error.check(
      eliza_inference_llm_stream_save_slot(stream_of(stream), Text(env, file).get(), error.out()));
}

void restore_slot(JNIEnv* env, jlong stream, jbyteArray file) {
  Message error;
  error.check(eliza_inference_llm_stream_restore_slot(stream_of(stream), Text(env, file).get(),
                                                      error.out()));
}

void close_stream(JNIEnv*, jlong stream) { eliza_inference_llm_stream_close(stream_of(stream)); }

// ------------------------------------------------------------------------- registration

void throw_refused(JNIEnv* env, const Refused& refused) {
  try {
    const jbyteArray message = new_bytes(env, refused.message);
    const jint code = refused.code;
    env->Throw(static_cast<jthrowable>(
        made(env->NewObject(java.exception, java.new_exception, code, message))));
  } catch (const Pending&) {
  }
}

// A function above as a native method: no C++ exception leaves it.
template <auto function>
struct Method;

template <typename Result, typename... Arguments, Result (*function)(JNIEnv*, Arguments...)>
struct Method<function> {
  static Result JNICALL call(JNIEnv* env, jclass, Arguments... arguments) {
    try {
      return function(env, arguments...);
    } catch (const Refused& refused) {
      throw_refused(env, refused);
    } catch (const Pending&) {
    } catch (const std::length_error&) {
      env->ThrowNew(env->FindClass("java/lang/IllegalArgumentException"), "a negative capacity");
    } catch (const std::exception& exception) {
      env->ThrowNew(env->FindClass("java/lang/OutOfMemoryError"), exception.what());
    }
    return Result();
  }
};

template <auto function>
JNINativeMethod method(const char* name, const char* signature) {
  // The JDK's jni.h takes them without const, Android's with it.
  return {const_cast<char*>(name), const_cast<char*>(signature),
          reinterpret_cast<void*>(Method<function>::call)};
}

jclass class_of(JNIEnv* env, const char* name) {
  return static_cast<jclass>(env->NewGlobalRef(made(env->FindClass(name))));
}

// Registered by hand: a method that Eliza.java declares otherwise fails here, not at its first
// call, and the library exports JNI_OnLoad alone.
void register_methods(JNIEnv* env) {
  const std::vector<JNINativeMethod> methods = {
      method<abi_version>("abiVersion", "()[B"),
      method<supported>("supported", "([B)Z"),
      method<set_environment>("setEnvironment", "([B[B)V"),
      method<release_nulls>("releaseNulls", "()V"),
      method<is_bundle>("isBundle", "([B)Z"),
      method<create>("create", "([B)J"),
      method<destroy>("destroy", "(J)V"),
      method<tokenize>("tokenize", "(J[BZZ)[I"),
      method<detokenize>("detokenize", "(J[IZZI)[B"),
      method<transcribe>("transcribe", "(J[FII)[B"),
      method<set_listener>("setListener", "(JLjava/util/function/Consumer;J)J"),
      method<open_stream>("open", "(JIFFIFI[BII[B[BZI[B[B)J"),
      method<prefill>("prefill", "(J[I)V"),
      method<next>("next", "(JII)Leliza/Eliza$Step;"),
      method<cancel>("cancel", "(J)V"),
      method<reset>("reset", "(J)V"),
      method<reset_keep>("resetKeep", "(JI)I"),
      method<save_slot>("saveSlot", "(J[B)V"),
      method<restore_slot>("restoreSlot", "(J[B)V"),
      method<close_stream>("close", "(J)V"),
  };
  if (env->RegisterNatives(made(env->FindClass("eliza/Eliza$Native")), methods.data(),
                           static_cast<jint>(methods.size())) != JNI_OK) {
    throw Pending();
  }
  java.exception = class_of(env, "eliza/Eliza$ElizaException");
  java.new_exception = made(env->GetMethodID(java.exception, "<init>", "(I[B)V"));
  java.eliza = class_of(env, "eliza/Eliza");
  java.verified = made(
      env->GetStaticMethodID(java.eliza, "verified", "(Ljava/util/function/Consumer;[III[I)V"));
  java.step = made(env->GetStaticMethodID(java.eliza, "step", "(Z[I[BII)Leliza/Eliza$Step;"));
}

}  // namespace

extern "C" JNIEXPORT jint JNICALL JNI_OnLoad(JavaVM* machine, void*) {
  void* env = nullptr;
  if (machine->GetEnv(&env, JNI_VERSION_1_6) != JNI_OK) return JNI_ERR;
  java.machine = machine;
  try {
    register_methods(static_cast<JNIEnv*>(env));
  } catch (const Pending&) {
    return JNI_ERR;
  }
  return JNI_VERSION_1_6;
}
