import eliza.Eliza;
import eliza.Eliza.Config;
import eliza.Eliza.Context;
import eliza.Eliza.ElizaException;
import eliza.Eliza.Step;
import eliza.Eliza.Stream;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.function.Consumer;

/**
 * The scenario of {@code ../README.md} in Java. It knows the class {@code eliza.Eliza} only, of
 * which there are two: through JNI, beside this file, and through the foreign-function API, in
 * {@code ../java-ffm}.
 */
public final class Scenario {
  static final String PROMPT = "The capital of France is";
  private static final String SMILEYS = "🙂🙃🙂🙃🙂🙃🙂";
  static final String LOOP = "one two three four one two three four one two";
  private static final String MIXED = "Hello, wörld! 🙂 日本語<|im_end|>";
  static final String LONG = "word ".repeat(2000);
  private static final List<String> FAMILIES =
      List.of(
          "llm_stream",
          "llm_mtp",
          "llm_kv_quant",
          "tokenize",
          "tts_stream",
          "asr_stream",
          "vad",
          "wakeword",
          "speaker",
          "diariz");
  private static final long CANCEL_AFTER_MILLIS = 50;
  static final Consumer<Config> USUAL = config -> config.maxTokens = 16;
  static final Consumer<Config> DRAFTING =
      config -> {
        config.maxTokens = 40;
        config.draftMin = 1;
        config.draftMax = 4;
        config.cacheTypeK = "q8_0";
        config.cacheTypeV = "q8_0";
      };

  private final Map<String, Object> transcript = new LinkedHashMap<>();
  private final Map<String, Object> cancelMillis = new LinkedHashMap<>();
  private final Context context;

  private Scenario(String bundle) {
    beforeTheContext();
    context = new Context(bundle);
  }

  public static void main(String[] arguments) {
    Eliza.load(arguments[0]);
    boolean misused = arguments.length > 2 && arguments[2].equals("misuse");
    StringBuilder json = new StringBuilder();
    write(json, misused ? new Misuse(arguments[1]).play() : new Scenario(arguments[1]).play());
    // Not println: System.out encodes in the locale's character set.
    byte[] utf8 = json.append('\n').toString().getBytes(StandardCharsets.UTF_8);
    System.out.write(utf8, 0, utf8.length);
    System.out.flush();
  }

  private Map<String, Object> play() {
    withoutAStream();
    onOneStream();
    configuredStreams();
    selection();
    cancelled();
    Eliza.releaseNulls();
    transcript.put("nulls", true);
    return Map.of("transcript", transcript, "cancel_ms", cancelMillis);
  }

  private void beforeTheContext() {
    transcript.put("version", Eliza.abiVersion());
    Map<String, Object> probes = new LinkedHashMap<>();
    for (String family : FAMILIES) {
      probes.put(family, Eliza.supported(family) ? 1 : 0);
    }
    transcript.put("probes", probes);
    String nowhere = "/no/such/bündle-🙂";
    transcript.put("bad_bundle", refusal(() -> new Context(nowhere)));
    if (Context.isBundle(nowhere)) {
      throw new AssertionError(nowhere + " is a bundle");
    }
  }

  private void withoutAStream() {
    transcript.put("voice", failure(() -> context.transcribe(new float[4], 16000, 64)));
    int[] special = context.tokenize(MIXED, true, true);
    transcript.put(
        "tokenize", Map.of("plain", context.tokenize(MIXED, true, false), "special", special));
    String text = context.detokenize(special, false, true, 256);
    transcript.put(
        "detokenize", Map.of("size", text.getBytes(StandardCharsets.UTF_8).length, "text", text));
    transcript.put("detokenize_small", failure(() -> context.detokenize(special, false, true, 4)));
  }

  private void onOneStream() {
    int[] prompt = ids(PROMPT);
    int[] smileys = ids(SMILEYS);
    try (Stream stream = open(USUAL)) {
      transcript.put("first", generate(stream, prompt));

      stream.reset();
      transcript.put("again", with(generate(stream, prompt), "reset", 0));

      int kept = stream.resetKeep(3);
      int[] rest = Arrays.copyOfRange(prompt, 3, prompt.length);
      transcript.put("kept", with(generate(stream, rest), "reset_keep", kept));

      transcript.put("continued", generate(stream, ids(" And then")));
      transcript.put("bad_token", failure(() -> stream.prefill(999999)));
      transcript.put("no_token", failure(() -> stream.prefill()));

      stream.reset();
      transcript.put("split", generate(stream, smileys));
      stream.reset();
      transcript.put("tiny", generate(stream, smileys, 1, 5));
      stream.reset();
      Map<String, Object> cramped = generate(stream, smileys, 16, 2);
      transcript.put("cramped", with(cramped, "then", step(stream)));

      stream.reset();
      stream.prefill(prompt);
      steps(stream, 4);
      stream.saveSlot("talk.slot");
      try (Stream second = open(USUAL)) {
        second.restoreSlot("talk.slot");
        Map<String, Object> saved = generate(second, ids(" And then"));
        transcript.put("saved", with(with(saved, "save", 0), "restore", 0));
      }
      transcript.put("missing_slot", failure(() -> stream.restoreSlot("missing.slot")));
    }
  }

  private void configuredStreams() {
    transcript.put(
        "sampled",
        generateOnce(
            PROMPT,
            config -> {
              config.temperature = 0.8f;
              config.topP = 0.9f;
              config.topK = 40;
              config.repeatPenalty = 1.2f;
            }));
    transcript.put(
        "grammar",
        generateOnce(PROMPT, config -> config.gbnfGrammar = "root ::= \" yes\" | \" no\""));
    Consumer<Config> keyed =
        config -> {
          config.slotId = 3;
          config.promptCacheKey = "talk";
        };
    transcript.put("keyed", List.of(generateOnce(PROMPT, keyed), generateOnce(PROMPT, keyed)));

    List<Object> events = new ArrayList<>();
    context.onVerified(
        event ->
            events.add(
                Map.of(
                    "accepted", event.accepted(),
                    "rejected_from", event.rejectedFrom(),
                    "rejected_to", event.rejectedTo(),
                    "corrected", event.corrected())));
    Map<String, Object> drafted = generateOnce(LOOP, DRAFTING);
    context.onVerified(null);
    transcript.put("drafted", with(drafted, "events", events));

    List<Consumer<Config>> wrong =
        List.of(
            config -> config.cacheTypeK = "q3_9",
            config -> config.cacheTypeV = "q3_9",
            config -> config.mtpDrafterPath = "/no/such/drafter.gguf",
            config -> config.gbnfGrammar = "root ::= (");
    List<Object> refusals = new ArrayList<>();
    for (Consumer<Config> setting : wrong) {
      refusals.add(refusal(() -> open(setting)));
    }
    transcript.put("failed_open", refusals);
  }

  private void selection() {
    Eliza.setEnvironment("ELIZA_LLM_BACKEND", "no-such-runtime");
    Map<String, Object> refused = refusal(() -> open(USUAL));
    String firstLine = refused.get("message").toString().lines().findFirst().orElse("");
    transcript.put("hard_select", with(refused, "message", firstLine));
    Eliza.setEnvironment("ELIZA_LLM_BACKEND", "LlamaCpp");
    transcript.put("selected", generateOnce(PROMPT, USUAL));
    Eliza.setEnvironment("ELIZA_LLM_BACKEND", null);
  }

  private void cancelled() {
    int[] prompt = ids(PROMPT);
    try (Stream stream = open(config -> config.maxTokens = 0)) {
      stream.prefill(ids(LOOP));
      Map<String, Object> stopped =
          stopped(
              "next",
              stream,
              () -> {
                while (true) {
                  stream.next(16, 256);
                }
              });
      Map<String, Object> record = object("code", stopped.get("code"));
      record.put("next", failure(() -> stream.next(16, 256)));
      record.put("prefill", failure(() -> stream.prefill(prompt)));
      transcript.put("cancel_next", recovered(record, stream, prompt));

      stream.reset();
      int[] words = ids(LONG);
      stopped = stopped("prefill", stream, () -> stream.prefill(words));
      transcript.put("cancel_prefill", recovered(stopped, stream, prompt));

      stream.reset();
      stream.prefill(prompt);
      context.close();
      transcript.put("outlived", object("steps", steps(stream, 4)));
    }
  }

  /** The failure that a call ends with, since another thread cancels meanwhile. */
  private Map<String, Object> stopped(String name, Stream stream, Runnable call) {
    long[] cancelledAt = new long[1];
    Thread canceller =
        new Thread(
            () -> {
              try {
                Thread.sleep(CANCEL_AFTER_MILLIS);
              } catch (InterruptedException interrupted) {
                return;
              }
              cancelledAt[0] = System.nanoTime();
              stream.cancel();
            });
    canceller.start();
    Map<String, Object> outcome = failure(call);
    long returnedAt = System.nanoTime();
    try {
      canceller.join();
    } catch (InterruptedException interrupted) {
      throw new AssertionError(interrupted);
    }
    cancelMillis.put(name, (returnedAt - cancelledAt[0]) / 1e6);
    return outcome;
  }

  private Map<String, Object> recovered(Map<String, Object> record, Stream stream, int[] prompt) {
    stream.reset();
    stream.prefill(prompt);
    return with(with(record, "reset", 0), "steps", steps(stream, 4));
  }

  private Stream open(Consumer<Config> settings) {
    Config config = new Config();
    USUAL.andThen(settings).accept(config);
    return context.open(config);
  }

  private int[] ids(String text) {
    return context.tokenize(text, true, false);
  }

  private Map<String, Object> generateOnce(String text, Consumer<Config> settings) {
    try (Stream stream = open(settings)) {
      return generate(stream, ids(text));
    }
  }

  private static Map<String, Object> generate(Stream stream, int[] prompt) {
    return generate(stream, prompt, 16, 256);
  }

  private static Map<String, Object> generate(
      Stream stream, int[] prompt, int tokenCapacity, int textCapacity) {
    try {
      stream.prefill(prompt);
    } catch (ElizaException refused) {
      return object("prefill", failure(refused));
    }
    List<Object> steps = new ArrayList<>();
    Map<String, Object> step;
    do {
      step = step(stream, tokenCapacity, textCapacity);
      steps.add(step);
    } while (step.get("code").equals(0));
    return with(object("prefill", 0), "steps", steps);
  }

  private static List<Object> steps(Stream stream, int count) {
    List<Object> steps = new ArrayList<>();
    for (int i = 0; i < count; i++) {
      steps.add(step(stream));
    }
    return steps;
  }

  private static Map<String, Object> step(Stream stream) {
    return step(stream, 16, 256);
  }

  private static Map<String, Object> step(Stream stream, int tokenCapacity, int textCapacity) {
    try {
      Step step = stream.next(tokenCapacity, textCapacity);
      Map<String, Object> record = object("code", step.done() ? 1 : 0);
      record.put("tokens", step.tokens());
      record.put("text", step.text());
      record.put("drafted", step.drafted());
      record.put("accepted", step.accepted());
      return record;
    } catch (ElizaException refused) {
      return failure(refused);
    }
  }

  private static Map<String, Object> failure(Runnable call) {
    try {
      call.run();
    } catch (ElizaException refused) {
      return failure(refused);
    }
    throw new AssertionError("a call succeeded that must fail");
  }

  private static Map<String, Object> failure(ElizaException refused) {
    return with(object("code", refused.code()), "message", refused.getMessage());
  }

  private static Map<String, Object> refusal(Runnable open) {
    return with(object("opened", false), "message", failure(open).get("message"));
  }

  private static Map<String, Object> object(String key, Object value) {
    return with(new LinkedHashMap<>(), key, value);
  }

  private static Map<String, Object> with(Map<String, Object> object, String key, Object value) {
    object.put(key, value);
    return object;
  }

  private static void write(StringBuilder json, Object value) {
    if (value instanceof Map<?, ?> object) {
      String separator = "{";
      for (Map.Entry<?, ?> entry : object.entrySet()) {
        json.append(separator);
        write(json, entry.getKey());
        json.append(": ");
        write(json, entry.getValue());
        separator = ", ";
      }
      json.append('}');
    } else if (value instanceof List<?> list) {
      String separator = "[";
      for (Object element : list) {
        json.append(separator);
        write(json, element);
        separator = ", ";
      }
      json.append(list.isEmpty() ? "[]" : "]");
    } else if (value instanceof int[] numbers) {
      json.append(Arrays.toString(numbers));
    } else if (value instanceof String text) {
      json.append('"');
      text.chars()
          .forEach(
              unit -> {
                if (unit < ' ' || unit == '"' || unit == '\\') {
                  json.append(String.format("\\u%04x", unit));
                } else {
                  json.append((char) unit);
                }
              });
      json.append('"');
    } else {
      json.append(value);
    }
  }
}
