package eliza;

import java.io.File;
import java.nio.charset.StandardCharsets;
import java.util.Objects;
import java.util.concurrent.Semaphore;
import java.util.function.Consumer;
import java.util.function.LongConsumer;
import java.util.function.LongFunction;

/**
 * libelizainference in Java 17, and in Android, through JNI; the other half is {@code
 * ../eliza_jni.cpp}.
 *
 * <p>What the library refuses arrives as an {@link ElizaException}; a wrong argument is an {@link
 * IllegalArgumentException} or, where null is none, a {@link NullPointerException}. Contexts and
 * streams are closed by try-with-resources; there is no finalizer behind it.
 */
public final class Eliza {
  private Eliza() {}

  /**
   * Loads the library and, from {@code java.library.path}, the glue. On Android both files lie in
   * {@code jniLibs}, and {@code System.loadLibrary("elizainference")} takes the place of the first
   * line.
   */
  public static void load(String library) {
    // In this order the glue finds its dependency by name among what is loaded: it has no RPATH.
    System.load(new File(library).getAbsolutePath());
    System.loadLibrary("eliza_jni");
  }

  public static String abiVersion() {
    return text(Native.abiVersion());
  }

  /** Whether a family of the header answers in this build, such as {@code llm_stream}. */
  public static boolean supported(String family) {
    return Native.supported(required("family", family));
  }

  /**
   * Sets a variable of the process's environment, which is where the library looks; null unsets it.
   * Java itself only knows the copy made at its start. Not while other threads read the
   * environment.
   */
  public static void setEnvironment(String name, String value) {
    Native.setEnvironment(required("name", name), optional("value", value));
  }

  /** Calls each function that closes or frees with NULL, which all of them ignore. */
  public static void releaseNulls() {
    Native.releaseNulls();
  }

  /** What the library refused: its error code and its message. */
  public static final class ElizaException extends RuntimeException {
    public static final int CANCELLED = -7;

    private static final long serialVersionUID = 1;
    private final int code;

    /** Called by the glue. */
    ElizaException(int code, byte[] message) {
      super(text(message));
      this.code = code;
    }

    /**
     * An {@code ELIZA_ERR_*}; 0 where nothing was opened, which the library reports without one.
     */
    public int code() {
      return code;
    }
  }

  /** What a stream generates and how: {@code eliza_llm_stream_config_t}. Unset means off. */
  public static final class Config {
    public int maxTokens;
    public float temperature;
    public float topP;
    public int topK;
    public float repeatPenalty;
    public int slotId = -1; // 0 would name a conversation
    public String promptCacheKey;
    public int draftMin;
    public int draftMax;
    public String mtpDrafterPath;
    public String gbnfGrammar;
    public boolean disableThinking;
    public int gpuLayers;
    public String cacheTypeK;
    public String cacheTypeV;
  }

  /** What one model step brought: complete characters only, the rest comes with a later step. */
  public record Step(boolean done, int[] tokens, String text, int drafted, int accepted) {}

  /** What the verifier made of one draft. */
  public record VerifierEvent(int[] accepted, int rejectedFrom, int rejectedTo, int[] corrected) {}

  /** A bundle of models. Serves any number of threads. */
  public static final class Context extends Handle {
    private long listener;

    public Context(String bundle) {
      super("the context", Integer.MAX_VALUE, Native.create(required("bundle", bundle)));
    }

    /** Whether a context can be made of this folder; asks for no message. */
    public static boolean isBundle(String folder) {
      return Native.isBundle(required("folder", folder));
    }

    public int[] tokenize(String text, boolean addSpecial, boolean parseSpecial) {
      // Whole, with U+0000 in it or not: its length goes with it.
      byte[] utf8 = Objects.requireNonNull(text, "text").getBytes(StandardCharsets.UTF_8);
      return get(context -> Native.tokenize(context, utf8, addSpecial, parseSpecial));
    }

    /** The text of tokens; one that is longer than {@code capacity - 1} bytes is refused. */
    public String detokenize(
        int[] tokens, boolean removeSpecial, boolean unparseSpecial, int capacity) {
      Objects.requireNonNull(tokens, "tokens");
      checkCapacity("capacity", capacity);
      return text(
          get(
              context ->
                  Native.detokenize(context, tokens, removeSpecial, unparseSpecial, capacity)));
    }

    /** Speech to text; this build answers {@code ELIZA_ERR_NOT_IMPLEMENTED}. */
    public String transcribe(float[] pcm, int sampleRate, int capacity) {
      Objects.requireNonNull(pcm, "pcm");
      checkCapacity("capacity", capacity);
      return text(get(context -> Native.transcribe(context, pcm, sampleRate, capacity)));
    }

    public Stream open(Config config) {
      Objects.requireNonNull(config, "config");
      return get(context -> new Stream(context, config));
    }

    /**
     * Has a listener called after every verified draft, inside {@code next} and on its thread; null
     * ends it. The listener may cancel the stream. What it throws goes to the thread's handler of
     * uncaught exceptions: C code is no place for an exception to pass through.
     */
    public synchronized void onVerified(Consumer<VerifierEvent> consumer) {
      run(context -> listener = Native.setListener(context, consumer, listener));
    }

    /** Waits for calls that run. The context's streams live on, and call no listener any more. */
    @Override
    public synchronized void close() {
      if (listener != 0) {
        onVerified(null); // first, as it fails inside a listener
      }
      super.close();
    }

    @Override
    void release(long context) {
      Native.destroy(context);
    }
  }

  /**
   * A stream of text. It serves one call at a time and refuses a second one, {@link #cancel} and
   * {@link #close} excepted.
   */
  public static final class Stream extends Handle {
    private volatile Thread caller;

    private Stream(long context, Config config) {
      super(
          "the stream",
          1,
          Native.open(
              context,
              config.maxTokens,
              config.temperature,
              config.topP,
              config.topK,
              config.repeatPenalty,
              config.slotId,
              optional("promptCacheKey", config.promptCacheKey),
              config.draftMin,
              config.draftMax,
              optional("mtpDrafterPath", config.mtpDrafterPath),
              optional("gbnfGrammar", config.gbnfGrammar),
              config.disableThinking,
              config.gpuLayers,
              optional("cacheTypeK", config.cacheTypeK),
              optional("cacheTypeV", config.cacheTypeV)));
    }

    public void prefill(int... tokens) {
      Objects.requireNonNull(tokens, "tokens");
      run(stream -> Native.prefill(stream, tokens));
    }

    /** One model step. What does not fit into the capacities comes with the next call. */
    public Step next(int tokenCapacity, int textCapacity) {
      checkCapacity("tokenCapacity", tokenCapacity);
      checkCapacity("textCapacity", textCapacity);
      return get(
          stream -> {
            caller = Thread.currentThread();
            try {
              return Native.next(stream, tokenCapacity, textCapacity);
            } finally {
              caller = null;
            }
          });
    }

    /** Stops a call that runs in another thread. After {@link #close} it does nothing. */
    public void cancel() {
      ifOpen(this::interrupt);
    }

    public void reset() {
      run(Native::reset);
    }

    /** Keeps the first tokens of the sequence; returns how many were kept. */
    public int resetKeep(int count) {
      return get(stream -> Native.resetKeep(stream, count));
    }

    public void saveSlot(String file) {
      byte[] path = required("file", file);
      run(stream -> Native.saveSlot(stream, path));
    }

    public void restoreSlot(String file) {
      byte[] path = required("file", file);
      run(stream -> Native.restoreSlot(stream, path));
    }

    /** Cancels the call that runs, if any, and waits for it. */
    @Override
    public void close() {
      if (caller == Thread.currentThread()) {
        throw new IllegalStateException("a listener closes the stream that it listens to");
      }
      super.close();
    }

    @Override
    void interrupt(long stream) {
      Native.cancel(stream);
    }

    @Override
    void release(long stream) {
      Native.close(stream);
    }
  }

  /**
   * A pointer of the library's. At most {@code callsAtOnce} calls use it, another is refused. Close
   * waits for those that run; what comes after it is refused as well.
   */
  private abstract static class Handle implements AutoCloseable {
    private final String name;
    private final int callsAtOnce;
    private final Semaphore calls;
    private final long pointer;
    private volatile boolean closed;

    Handle(String name, int callsAtOnce, long pointer) {
      this.name = name;
      this.callsAtOnce = callsAtOnce;
      this.calls = new Semaphore(callsAtOnce);
      this.pointer = pointer;
    }

    /** Called once, while calls may run: makes them end soon. */
    void interrupt(long pointer) {}

    /** Called once, when no call runs. */
    abstract void release(long pointer);

    final <R> R get(LongFunction<R> call) {
      boolean begun = calls.tryAcquire();
      try {
        if (closed) {
          throw new IllegalStateException(name + " is closed");
        }
        if (!begun) {
          throw new IllegalStateException(name + " is busy: another call on it runs");
        }
        return call.apply(pointer);
      } finally {
        if (begun) {
          calls.release();
        }
      }
    }

    final void run(LongConsumer call) {
      get(
          open -> {
            call.accept(open);
            return null;
          });
    }

    /** Runs beside the calls of {@link #get}, unless the handle is closed; it must not block. */
    final synchronized void ifOpen(LongConsumer call) {
      if (!closed) {
        call.accept(pointer);
      }
    }

    @Override
    public void close() {
      synchronized (this) {
        if (closed) {
          return;
        }
        closed = true;
        interrupt(pointer);
      }
      calls.acquireUninterruptibly(callsAtOnce); // for good
      release(pointer);
    }
  }

  /** A C string without its terminator, which the glue adds; null becomes NULL. */
  private static byte[] optional(String argument, String text) {
    return text == null ? null : required(argument, text);
  }

  private static byte[] required(String argument, String text) {
    Objects.requireNonNull(text, argument);
    if (text.indexOf('\0') >= 0) {
      throw new IllegalArgumentException(argument + " has U+0000, where C would end it");
    }
    return text.getBytes(StandardCharsets.UTF_8);
  }

  private static void checkCapacity(String argument, int capacity) {
    if (capacity < 0) {
      throw new IllegalArgumentException(argument + " is " + capacity);
    }
  }

  private static String text(byte[] utf8) {
    return new String(utf8, StandardCharsets.UTF_8);
  }

  /** Called by the glue after each verified draft. */
  private static void verified(
      Consumer<VerifierEvent> consumer, int[] accepted, int from, int to, int[] corrected) {
    try {
      consumer.accept(new VerifierEvent(accepted, from, to, corrected));
    } catch (Throwable thrown) {
      Thread thread = Thread.currentThread();
      thread.getUncaughtExceptionHandler().uncaughtException(thread, thrown);
    }
  }

  /** Called by the glue with the buffers of one {@code next}, cut to what was written. */
  private static Step step(boolean done, int[] tokens, byte[] text, int drafted, int accepted) {
    return new Step(done, tokens, text(text), drafted, accepted);
  }

  /** The functions of {@code eliza_jni.cpp}; pointers are longs, text is UTF-8 in byte arrays. */
  private static final class Native {
    static native byte[] abiVersion();

    static native boolean supported(byte[] family);

    static native void setEnvironment(byte[] name, byte[] value);

    static native void releaseNulls();

    static native boolean isBundle(byte[] folder);

    static native long create(byte[] bundle);

    static native void destroy(long context);

    static native int[] tokenize(long context, byte[] text, boolean add, boolean parse);

    static native byte[] detokenize(
        long context, int[] tokens, boolean remove, boolean unparse, int capacity);

    static native byte[] transcribe(long context, float[] pcm, int sampleRate, int capacity);

    static native long setListener(long context, Consumer<VerifierEvent> consumer, long previous);

    static native long open(
        long context,
        int maxTokens,
        float temperature,
        float topP,
        int topK,
        float repeatPenalty,
        int slotId,
        byte[] promptCacheKey,
        int draftMin,
        int draftMax,
        byte[] mtpDrafterPath,
        byte[] gbnfGrammar,
        boolean disableThinking,
        int gpuLayers,
        byte[] cacheTypeK,
        byte[] cacheTypeV);

    static native void prefill(long stream, int[] tokens);

    static native Step next(long stream, int tokenCapacity, int textCapacity);

    static native void cancel(long stream);

    static native void reset(long stream);

    static native int resetKeep(long stream, int count);

    static native void saveSlot(long stream, byte[] file);

    static native void restoreSlot(long stream, byte[] file);

    static native void close(long stream);
  }
}
