package eliza;

import static java.lang.foreign.MemoryLayout.PathElement.groupElement;
import static java.lang.foreign.ValueLayout.ADDRESS;
import static java.lang.foreign.ValueLayout.JAVA_FLOAT;
import static java.lang.foreign.ValueLayout.JAVA_INT;
import static java.lang.foreign.ValueLayout.JAVA_LONG;

import java.lang.foreign.Arena;
import java.lang.foreign.FunctionDescriptor;
import java.lang.foreign.Linker;
import java.lang.foreign.MemoryLayout;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.StructLayout;
import java.lang.foreign.SymbolLookup;
import java.lang.foreign.ValueLayout;
import java.lang.invoke.MethodHandle;
import java.lang.invoke.MethodHandles;
import java.lang.invoke.MethodType;
import java.lang.invoke.VarHandle;
import java.util.Objects;
import java.util.concurrent.Semaphore;
import java.util.function.Consumer;
import java.util.function.Function;

/**
 * libelizainference in Java 22 and later through the foreign-function API: no C at all. Starts with
 * {@code java --enable-native-access=ALL-UNNAMED}, or with the name of the module that holds this.
 *
 * <p>What the library refuses arrives as an {@link ElizaException}; a wrong argument is an {@link
 * IllegalArgumentException} or, where null is none, a {@link NullPointerException}. Contexts and
 * streams are closed by try-with-resources; there is no finalizer behind it.
 */
@SuppressWarnings("restricted") // what --enable-native-access permits
public final class Eliza {
  private static SymbolLookup library;

  private Eliza() {}

  /** Loads the library, for good: it has threads, so no arena unloads it. */
  public static void load(String path) {
    library = SymbolLookup.libraryLookup(path, Arena.global());
  }

  public static String abiVersion() {
    return call(() -> text((MemorySegment) Native.ABI_VERSION.invokeExact()));
  }

  /** Whether a family of the header answers in this build, such as {@code llm_stream}. */
  public static boolean supported(String family) {
    Objects.requireNonNull(family, "family");
    if (!Native.has(family + "_supported")) {
      throw new IllegalArgumentException("family: there is none of that name");
    }
    MethodHandle supported = Native.function(family + "_supported", JAVA_INT);
    return call(() -> (int) supported.invokeExact()) != 0;
  }

  /**
   * Sets a variable of the process's environment, which is where the library looks; null unsets it.
   * Java itself only knows the copy made at its start. Not while other threads read the
   * environment.
   */
  public static void setEnvironment(String name, String value) {
    try (Arena arena = Arena.ofConfined()) {
      MemorySegment variable = required(arena, "name", name);
      MemorySegment content = optional(arena, "value", value);
      int failed =
          call(
              () ->
                  value == null
                      ? (int) Native.UNSETENV.invokeExact(variable)
                      : (int) Native.SETENV.invokeExact(variable, content, 1));
      if (failed != 0) {
        throw new IllegalArgumentException("not a variable's name");
      }
    }
  }

  /** Calls each function that closes or frees with NULL, which all of them ignore. */
  public static void releaseNulls() {
    String[] names = {
      "destroy",
      "llm_stream_close",
      "asr_stream_close",
      "vad_close",
      "wakeword_close",
      "speaker_close",
      "diariz_close",
      "free_string",
      "free_tokens"
    };
    for (String name : names) {
      release(Native.procedure(name, ADDRESS), MemorySegment.NULL);
    }
  }

  /** What the library refused: its error code and its message. */
  public static final class ElizaException extends RuntimeException {
    public static final int CANCELLED = -7;

    private static final long serialVersionUID = 1;
    private final int code;

    ElizaException(int code, String message) {
      super(message);
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

    private static final StructLayout LAYOUT =
        MemoryLayout.structLayout(
            JAVA_INT.withName("max_tokens"),
            JAVA_FLOAT.withName("temperature"),
            JAVA_FLOAT.withName("top_p"),
            JAVA_INT.withName("top_k"),
            JAVA_FLOAT.withName("repeat_penalty"),
            JAVA_INT.withName("slot_id"),
            ADDRESS.withName("prompt_cache_key"),
            JAVA_INT.withName("draft_min"),
            JAVA_INT.withName("draft_max"),
            ADDRESS.withName("mtp_drafter_path"),
            ADDRESS.withName("gbnf_grammar"),
            JAVA_INT.withName("disable_thinking"),
            JAVA_INT.withName("n_gpu_layers"),
            ADDRESS.withName("cache_type_k"),
            ADDRESS.withName("cache_type_v"));
    private static final VarHandle MAX_TOKENS = field(LAYOUT, "max_tokens", 0);
    private static final VarHandle TEMPERATURE = field(LAYOUT, "temperature", 4);
    private static final VarHandle TOP_P = field(LAYOUT, "top_p", 8);
    private static final VarHandle TOP_K = field(LAYOUT, "top_k", 12);
    private static final VarHandle REPEAT_PENALTY = field(LAYOUT, "repeat_penalty", 16);
    private static final VarHandle SLOT_ID = field(LAYOUT, "slot_id", 20);
    private static final VarHandle PROMPT_CACHE_KEY = field(LAYOUT, "prompt_cache_key", 24);
    private static final VarHandle DRAFT_MIN = field(LAYOUT, "draft_min", 32);
    private static final VarHandle DRAFT_MAX = field(LAYOUT, "draft_max", 36);
    private static final VarHandle MTP_DRAFTER_PATH = field(LAYOUT, "mtp_drafter_path", 40);
    private static final VarHandle GBNF_GRAMMAR = field(LAYOUT, "gbnf_grammar", 48);
    private static final VarHandle DISABLE_THINKING = field(LAYOUT, "disable_thinking", 56);
    private static final VarHandle N_GPU_LAYERS = field(LAYOUT, "n_gpu_layers", 60);
    private static final VarHandle CACHE_TYPE_K = field(LAYOUT, "cache_type_k", 64);
    private static final VarHandle CACHE_TYPE_V = field(LAYOUT, "cache_type_v", 72);

    static {
      checkSize(LAYOUT, 80);
    }

    /** The struct; it and its strings live as long as the arena. */
    private MemorySegment toNative(Arena arena) {
      MemorySegment struct = arena.allocate(LAYOUT); // zeroed
      MAX_TOKENS.set(struct, 0L, maxTokens);
      TEMPERATURE.set(struct, 0L, temperature);
      TOP_P.set(struct, 0L, topP);
      TOP_K.set(struct, 0L, topK);
      REPEAT_PENALTY.set(struct, 0L, repeatPenalty);
      SLOT_ID.set(struct, 0L, slotId);
      PROMPT_CACHE_KEY.set(struct, 0L, optional(arena, "promptCacheKey", promptCacheKey));
      DRAFT_MIN.set(struct, 0L, draftMin);
      DRAFT_MAX.set(struct, 0L, draftMax);
      MTP_DRAFTER_PATH.set(struct, 0L, optional(arena, "mtpDrafterPath", mtpDrafterPath));
      GBNF_GRAMMAR.set(struct, 0L, optional(arena, "gbnfGrammar", gbnfGrammar));
      DISABLE_THINKING.set(struct, 0L, disableThinking ? 1 : 0);
      N_GPU_LAYERS.set(struct, 0L, gpuLayers);
      CACHE_TYPE_K.set(struct, 0L, optional(arena, "cacheTypeK", cacheTypeK));
      CACHE_TYPE_V.set(struct, 0L, optional(arena, "cacheTypeV", cacheTypeV));
      return struct;
    }
  }

  /** What one model step brought: complete characters only, the rest comes with a later step. */
  public record Step(boolean done, int[] tokens, String text, int drafted, int accepted) {}

  /** What the verifier made of one draft. */
  public record VerifierEvent(int[] accepted, int rejectedFrom, int rejectedTo, int[] corrected) {
    private static final StructLayout LAYOUT =
        MemoryLayout.structLayout(
            ADDRESS.withName("accepted_token_ids"),
            JAVA_LONG.withName("n_accepted"),
            JAVA_INT.withName("rejected_from"),
            JAVA_INT.withName("rejected_to"),
            ADDRESS.withName("corrected_token_ids"),
            JAVA_LONG.withName("n_corrected"));
    private static final VarHandle ACCEPTED = field(LAYOUT, "accepted_token_ids", 0);
    private static final VarHandle N_ACCEPTED = field(LAYOUT, "n_accepted", 8);
    private static final VarHandle REJECTED_FROM = field(LAYOUT, "rejected_from", 16);
    private static final VarHandle REJECTED_TO = field(LAYOUT, "rejected_to", 20);
    private static final VarHandle CORRECTED = field(LAYOUT, "corrected_token_ids", 24);
    private static final VarHandle N_CORRECTED = field(LAYOUT, "n_corrected", 32);

    static {
      checkSize(LAYOUT, 40);
    }

    /** A copy: the arrays are gone when the callback returns. */
    private static VerifierEvent of(MemorySegment event) {
      return new VerifierEvent(
          ints((MemorySegment) ACCEPTED.get(event, 0L), (long) N_ACCEPTED.get(event, 0L)),
          (int) REJECTED_FROM.get(event, 0L),
          (int) REJECTED_TO.get(event, 0L),
          ints((MemorySegment) CORRECTED.get(event, 0L), (long) N_CORRECTED.get(event, 0L)));
    }
  }

  /** A bundle of models. Serves any number of threads. */
  public static final class Context extends Handle {
    private Arena listening;

    public Context(String bundle) {
      super(
          "the context",
          Integer.MAX_VALUE,
          opened(
              (arena, error) ->
                  (MemorySegment)
                      Native.CREATE.invokeExact(required(arena, "bundle", bundle), error)));
    }

    /** Whether a context can be made of this folder; asks for no message. */
    public static boolean isBundle(String folder) {
      try (Arena arena = Arena.ofConfined()) {
        MemorySegment path = required(arena, "folder", folder);
        MemorySegment context =
            call(() -> (MemorySegment) Native.CREATE.invokeExact(path, MemorySegment.NULL));
        Eliza.release(Native.DESTROY, context);
        return !context.equals(MemorySegment.NULL);
      }
    }

    public int[] tokenize(String text, boolean addSpecial, boolean parseSpecial) {
      Objects.requireNonNull(text, "text");
      return get(
          context -> {
            try (Arena arena = Arena.ofConfined()) {
              MemorySegment utf8 = arena.allocateFrom(text); // U+0000 included: its size goes along
              MemorySegment tokens = arena.allocate(ADDRESS);
              MemorySegment count = arena.allocate(JAVA_LONG);
              checked(
                  (_, error) ->
                      (int)
                          Native.TOKENIZE.invokeExact(
                              context,
                              utf8,
                              utf8.byteSize() - 1,
                              addSpecial ? 1 : 0,
                              parseSpecial ? 1 : 0,
                              tokens,
                              count,
                              error));
              MemorySegment array = tokens.get(ADDRESS, 0);
              try {
                return ints(array, count.get(JAVA_LONG, 0));
              } finally {
                Eliza.release(Native.FREE_TOKENS, array);
              }
            }
          });
    }

    /** The text of tokens; one that is longer than {@code capacity - 1} bytes is refused. */
    public String detokenize(
        int[] tokens, boolean removeSpecial, boolean unparseSpecial, int capacity) {
      Objects.requireNonNull(tokens, "tokens");
      checkCapacity("capacity", capacity);
      return get(
          context -> {
            try (Arena arena = Arena.ofConfined()) {
              MemorySegment text = arena.allocate(capacity);
              checked(
                  (scratch, error) ->
                      (int)
                          Native.DETOKENIZE.invokeExact(
                              context,
                              scratch.allocateFrom(JAVA_INT, tokens),
                              (long) tokens.length,
                              removeSpecial ? 1 : 0,
                              unparseSpecial ? 1 : 0,
                              text,
                              text.byteSize(),
                              error));
              return text.getString(0);
            }
          });
    }

    /** Speech to text; this build answers {@code ELIZA_ERR_NOT_IMPLEMENTED}. */
    public String transcribe(float[] pcm, int sampleRate, int capacity) {
      Objects.requireNonNull(pcm, "pcm");
      checkCapacity("capacity", capacity);
      return get(
          context -> {
            try (Arena arena = Arena.ofConfined()) {
              MemorySegment text = arena.allocate(capacity);
              checked(
                  (scratch, error) ->
                      (int)
                          Native.ASR_TRANSCRIBE.invokeExact(
                              context,
                              scratch.allocateFrom(JAVA_FLOAT, pcm),
                              (long) pcm.length,
                              sampleRate,
                              text,
                              text.byteSize(),
                              error));
              return text.getString(0);
            }
          });
    }

    public Stream open(Config config) {
      Objects.requireNonNull(config, "config");
      return get(context -> new Stream(context, config));
    }

    /**
     * Has a listener called after every verified draft, inside {@code next} and on its thread; null
     * ends it. The listener may cancel the stream. What it throws goes to the thread's handler of
     * uncaught exceptions: out of an upcall it would end the process.
     */
    public synchronized void onVerified(Consumer<VerifierEvent> consumer) {
      // Shared: whichever thread changes the listener closes it.
      Arena arena = consumer == null ? null : Arena.ofShared();
      try {
        MemorySegment stub =
            arena == null ? MemorySegment.NULL : Native.verifierStub(arena, consumer);
        run(
            context ->
                checked(
                    (_, error) ->
                        (int)
                            Native.SET_VERIFIER_CALLBACK.invokeExact(
                                context, stub, MemorySegment.NULL, error)));
      } catch (RuntimeException refused) {
        if (arena != null) {
          arena.close();
        }
        throw refused;
      }
      // The library has waited for the calls of the one that it lets go: its code can go, too.
      if (listening != null) {
        listening.close();
      }
      listening = arena;
    }

    /** Waits for calls that run. The context's streams live on, and call no listener any more. */
    @Override
    public synchronized void close() {
      if (listening != null) {
        onVerified(null); // first, as it fails inside a listener
      }
      super.close();
    }

    @Override
    void release(MemorySegment context) {
      Eliza.release(Native.DESTROY, context);
    }
  }

  /**
   * A stream of text. It serves one call at a time and refuses a second one, {@link #cancel} and
   * {@link #close} excepted.
   */
  public static final class Stream extends Handle {
    private volatile Thread caller;

    private Stream(MemorySegment context, Config config) {
      super(
          "the stream",
          1,
          opened(
              (arena, error) ->
                  (MemorySegment) Native.OPEN.invokeExact(context, config.toNative(arena), error)));
    }

    public void prefill(int... tokens) {
      Objects.requireNonNull(tokens, "tokens");
      report(
          (stream, arena, error) ->
              (int)
                  Native.PREFILL.invokeExact(
                      stream, arena.allocateFrom(JAVA_INT, tokens), (long) tokens.length, error));
    }

    /** One model step. What does not fit into the capacities comes with the next call. */
    public Step next(int tokenCapacity, int textCapacity) {
      checkCapacity("tokenCapacity", tokenCapacity);
      checkCapacity("textCapacity", textCapacity);
      try (Arena arena = Arena.ofConfined()) {
        MemorySegment tokens = arena.allocate(JAVA_INT, tokenCapacity);
        MemorySegment count = arena.allocate(JAVA_LONG);
        MemorySegment text = arena.allocate(textCapacity);
        MemorySegment drafted = arena.allocate(JAVA_INT);
        MemorySegment accepted = arena.allocate(JAVA_INT);
        int code =
            report(
                (stream, _, error) -> {
                  caller = Thread.currentThread();
                  try {
                    return (int)
                        Native.NEXT.invokeExact(
                            stream,
                            tokens,
                            (long) tokenCapacity,
                            count,
                            text,
                            (long) textCapacity,
                            drafted,
                            accepted,
                            error);
                  } finally {
                    caller = null;
                  }
                });
        return new Step(
            code == 1,
            ints(tokens, count.get(JAVA_LONG, 0)),
            text.getString(0),
            drafted.get(JAVA_INT, 0),
            accepted.get(JAVA_INT, 0));
      }
    }

    /** Stops a call that runs in another thread. After {@link #close} it does nothing. */
    public void cancel() {
      ifOpen(this::interrupt);
    }

    public void reset() {
      report((stream, _, _) -> (int) Native.RESET.invokeExact(stream));
    }

    /** Keeps the first tokens of the sequence; returns how many were kept. */
    public int resetKeep(int count) {
      return report((stream, _, _) -> (int) Native.RESET_KEEP.invokeExact(stream, count));
    }

    public void saveSlot(String file) {
      report(
          (stream, arena, error) ->
              (int) Native.SAVE_SLOT.invokeExact(stream, required(arena, "file", file), error));
    }

    public void restoreSlot(String file) {
      report(
          (stream, arena, error) ->
              (int) Native.RESTORE_SLOT.invokeExact(stream, required(arena, "file", file), error));
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
    void interrupt(MemorySegment stream) {
      int _ = call(() -> (int) Native.CANCEL.invokeExact(stream));
    }

    @Override
    void release(MemorySegment stream) {
      Eliza.release(Native.CLOSE, stream);
    }

    private int report(StreamCall call) {
      return get(stream -> checked((arena, error) -> call.call(stream, arena, error)));
    }

    private interface StreamCall {
      int call(MemorySegment stream, Arena arena, MemorySegment outError) throws Throwable;
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
    private final MemorySegment pointer;
    private volatile boolean closed;

    Handle(String name, int callsAtOnce, MemorySegment pointer) {
      this.name = name;
      this.callsAtOnce = callsAtOnce;
      this.calls = new Semaphore(callsAtOnce);
      this.pointer = pointer;
    }

    /** Called once, while calls may run: makes them end soon. */
    void interrupt(MemorySegment pointer) {}

    /** Called once, when no call runs. */
    abstract void release(MemorySegment pointer);

    final <R> R get(Function<MemorySegment, R> call) {
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

    final void run(Consumer<MemorySegment> call) {
      get(
          open -> {
            call.accept(open);
            return null;
          });
    }

    /** Runs beside the calls of {@link #get}, unless the handle is closed; it must not block. */
    final synchronized void ifOpen(Consumer<MemorySegment> call) {
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

  /** A call that reports through an out_error; the arena is for its arguments. */
  private interface Reporting<R> {
    R call(Arena arena, MemorySegment outError) throws Throwable;
  }

  private interface Call<R> {
    R call() throws Throwable;
  }

  private static int checked(Reporting<Integer> reporting) {
    try (Arena arena = Arena.ofConfined()) {
      MemorySegment outError = arena.allocate(ADDRESS);
      int code = call(() -> reporting.call(arena, outError));
      if (code < 0) {
        throw new ElizaException(code, takeMessage(outError));
      }
      return code;
    }
  }

  private static MemorySegment opened(Reporting<MemorySegment> reporting) {
    try (Arena arena = Arena.ofConfined()) {
      MemorySegment outError = arena.allocate(ADDRESS);
      MemorySegment handle = call(() -> reporting.call(arena, outError));
      if (handle.equals(MemorySegment.NULL)) {
        throw new ElizaException(0, takeMessage(outError));
      }
      return handle;
    }
  }

  private static String takeMessage(MemorySegment outError) {
    MemorySegment message = outError.get(ADDRESS, 0);
    if (message.equals(MemorySegment.NULL)) {
      return "";
    }
    try {
      return text(message);
    } finally {
      release(Native.FREE_STRING, message);
    }
  }

  private static void release(MethodHandle function, MemorySegment pointer) {
    call(
        () -> {
          function.invokeExact(pointer);
          return null;
        });
  }

  /** Method handles declare Throwable; C functions throw nothing, the linker only unchecked. */
  private static <R> R call(Call<R> call) {
    try {
      return call.call();
    } catch (RuntimeException | Error unchecked) {
      throw unchecked;
    } catch (Throwable impossible) {
      throw new AssertionError(impossible);
    }
  }

  /** A C string in UTF-8; null becomes NULL. */
  private static MemorySegment optional(Arena arena, String argument, String text) {
    return text == null ? MemorySegment.NULL : required(arena, argument, text);
  }

  private static MemorySegment required(Arena arena, String argument, String text) {
    Objects.requireNonNull(text, argument);
    if (text.indexOf('\0') >= 0) {
      throw new IllegalArgumentException(argument + " has U+0000, where C would end it");
    }
    return arena.allocateFrom(text);
  }

  private static void checkCapacity(String argument, int capacity) {
    if (capacity < 0) {
      throw new IllegalArgumentException(argument + " is " + capacity);
    }
  }

  /** Reads what a pointer from C leads to: its segment has length 0 until one says otherwise. */
  private static String text(MemorySegment pointer) {
    return pointer.reinterpret(Long.MAX_VALUE).getString(0);
  }

  private static int[] ints(MemorySegment pointer, long count) {
    return pointer.reinterpret(count * JAVA_INT.byteSize()).toArray(JAVA_INT);
  }

  /** The handle of a field, provided that it lies where the table of the ABI has it. */
  private static VarHandle field(StructLayout layout, String name, long offset) {
    long actual = layout.byteOffset(groupElement(name));
    if (actual != offset) {
      throw new AssertionError(name + " lies at " + actual + ", not at " + offset);
    }
    return layout.varHandle(groupElement(name));
  }

  private static void checkSize(StructLayout layout, long size) {
    if (layout.byteSize() != size) {
      throw new AssertionError(layout + " has " + layout.byteSize() + " bytes, not " + size);
    }
  }

  /**
   * The C functions. Static and final, so that calls compile to plain calls; looked up when {@link
   * #load} has said where. No {@code Linker.Option.critical}: these calls run models, and a
   * critical one keeps the garbage collector waiting and must not call back.
   */
  private static final class Native {
    private static final String PREFIX = "eliza_inference_";
    private static final Linker LINKER = Linker.nativeLinker();
    private static final SymbolLookup LIBRARY =
        Objects.requireNonNull(library, "Eliza.load comes first");

    static final MethodHandle ABI_VERSION = function("abi_version", ADDRESS);
    static final MethodHandle FREE_STRING = procedure("free_string", ADDRESS);
    static final MethodHandle FREE_TOKENS = procedure("free_tokens", ADDRESS);
    static final MethodHandle CREATE = function("create", ADDRESS, ADDRESS, ADDRESS);
    static final MethodHandle DESTROY = procedure("destroy", ADDRESS);
    static final MethodHandle TOKENIZE =
        function(
            "tokenize",
            JAVA_INT,
            ADDRESS,
            ADDRESS,
            JAVA_LONG,
            JAVA_INT,
            JAVA_INT,
            ADDRESS,
            ADDRESS,
            ADDRESS);
    static final MethodHandle DETOKENIZE =
        function(
            "detokenize",
            JAVA_INT,
            ADDRESS,
            ADDRESS,
            JAVA_LONG,
            JAVA_INT,
            JAVA_INT,
            ADDRESS,
            JAVA_LONG,
            ADDRESS);
    static final MethodHandle ASR_TRANSCRIBE =
        function(
            "asr_transcribe",
            JAVA_INT,
            ADDRESS,
            ADDRESS,
            JAVA_LONG,
            JAVA_INT,
            ADDRESS,
            JAVA_LONG,
            ADDRESS);
    static final MethodHandle SET_VERIFIER_CALLBACK =
        function("set_verifier_callback", JAVA_INT, ADDRESS, ADDRESS, ADDRESS, ADDRESS);
    static final MethodHandle OPEN =
        function("llm_stream_open", ADDRESS, ADDRESS, ADDRESS, ADDRESS);
    static final MethodHandle PREFILL =
        function("llm_stream_prefill", JAVA_INT, ADDRESS, ADDRESS, JAVA_LONG, ADDRESS);
    static final MethodHandle NEXT =
        function(
            "llm_stream_next",
            JAVA_INT,
            ADDRESS,
            ADDRESS,
            JAVA_LONG,
            ADDRESS,
            ADDRESS,
            JAVA_LONG,
            ADDRESS,
            ADDRESS,
            ADDRESS);
    static final MethodHandle CANCEL = function("llm_stream_cancel", JAVA_INT, ADDRESS);
    static final MethodHandle RESET = function("llm_stream_reset", JAVA_INT, ADDRESS);
    static final MethodHandle RESET_KEEP =
        function("llm_stream_reset_keep", JAVA_INT, ADDRESS, JAVA_INT);
    static final MethodHandle SAVE_SLOT =
        function("llm_stream_save_slot", JAVA_INT, ADDRESS, ADDRESS, ADDRESS);
    static final MethodHandle RESTORE_SLOT =
        function("llm_stream_restore_slot", JAVA_INT, ADDRESS, ADDRESS, ADDRESS);
    static final MethodHandle CLOSE = procedure("llm_stream_close", ADDRESS);

    // Of the C library, which the default lookup knows.
    static final MethodHandle SETENV =
        find(
            LINKER.defaultLookup(),
            "setenv",
            FunctionDescriptor.of(JAVA_INT, ADDRESS, ADDRESS, JAVA_INT));
    static final MethodHandle UNSETENV =
        find(LINKER.defaultLookup(), "unsetenv", FunctionDescriptor.of(JAVA_INT, ADDRESS));

    static boolean has(String name) {
      return LIBRARY.find(PREFIX + name).isPresent();
    }

    static MethodHandle function(String name, ValueLayout result, ValueLayout... arguments) {
      return find(LIBRARY, PREFIX + name, FunctionDescriptor.of(result, arguments));
    }

    static MethodHandle procedure(String name, ValueLayout... arguments) {
      return find(LIBRARY, PREFIX + name, FunctionDescriptor.ofVoid(arguments));
    }

    private static MethodHandle find(
        SymbolLookup lookup, String name, FunctionDescriptor descriptor) {
      MemorySegment address = lookup.find(name).orElseThrow(() -> new UnsatisfiedLinkError(name));
      return LINKER.downcallHandle(address, descriptor);
    }

    /** A C function that calls the consumer, until the arena closes. */
    static MemorySegment verifierStub(Arena arena, Consumer<VerifierEvent> consumer) {
      MethodHandle target;
      try {
        target =
            MethodHandles.lookup()
                .findStatic(
                    Native.class,
                    "verified",
                    MethodType.methodType(
                        void.class, Consumer.class, MemorySegment.class, MemorySegment.class));
      } catch (ReflectiveOperationException impossible) {
        throw new AssertionError(impossible);
      }
      return LINKER.upcallStub(
          target.bindTo(consumer),
          FunctionDescriptor.ofVoid(ADDRESS.withTargetLayout(VerifierEvent.LAYOUT), ADDRESS),
          arena);
    }

    private static void verified(
        Consumer<VerifierEvent> consumer, MemorySegment event, MemorySegment userData) {
      try {
        consumer.accept(VerifierEvent.of(event));
      } catch (Throwable thrown) {
        Thread thread = Thread.currentThread();
        thread.getUncaughtExceptionHandler().uncaughtException(thread, thrown);
      }
    }
  }
}
