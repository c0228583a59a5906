import eliza.Eliza;
import eliza.Eliza.Config;
import eliza.Eliza.Context;
import eliza.Eliza.ElizaException;
import eliza.Eliza.Stream;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CountDownLatch;
import java.util.function.BiConsumer;

/** The misuse of {@code ../README.md}: what callers may get wrong, and what they are told. */
final class Misuse {
  private static final String NUL = "a\0b";

  private final Map<String, Object> played = new LinkedHashMap<>();
  private final String bundle;
  private final Context context;

  Misuse(String bundle) {
    this.bundle = bundle;
    context = new Context(bundle);
  }

  Map<String, Object> play() {
    wrongTexts();
    nulls();
    wrongCapacities();
    played.put("no_family", refused("family", () -> Eliza.supported("telepathy")));
    busyStream();
    closedStream();
    played.put("closing_context", closedWhileOpening(bundle));
    closedContext();
    return played;
  }

  private void wrongTexts() {
    Map<String, Object> outcomes = new LinkedHashMap<>();
    outcomes.put("bundle", refused("bundle", () -> new Context(NUL)));
    setting(outcomes, "prompt_cache_key", "promptCacheKey", (c, text) -> c.promptCacheKey = text);
    setting(outcomes, "mtp_drafter_path", "mtpDrafterPath", (c, text) -> c.mtpDrafterPath = text);
    setting(outcomes, "gbnf_grammar", "gbnfGrammar", (c, text) -> c.gbnfGrammar = text);
    setting(outcomes, "cache_type_k", "cacheTypeK", (c, text) -> c.cacheTypeK = text);
    setting(outcomes, "cache_type_v", "cacheTypeV", (c, text) -> c.cacheTypeV = text);
    try (Stream stream = context.open(new Config())) {
      outcomes.put("save_slot", refused("file", () -> stream.saveSlot(NUL)));
      outcomes.put("restore_slot", refused("file", () -> stream.restoreSlot(NUL)));
    }
    played.put("nul", outcomes);

    int[] whole = context.tokenize(NUL, true, false);
    played.put("whole_text", context.detokenize(whole, false, true, 256));
  }

  private void setting(
      Map<String, Object> outcomes, String key, String field, BiConsumer<Config, String> set) {
    Config config = new Config();
    set.accept(config, NUL);
    outcomes.put(key, refused(field, () -> context.open(config)));
  }

  private void nulls() {
    Map<String, Object> outcomes = new LinkedHashMap<>();
    outcomes.put("bundle", refused("bundle", () -> new Context(null)));
    outcomes.put("text", refused("text", () -> context.tokenize(null, true, false)));
    outcomes.put("ids", refused("tokens", () -> context.detokenize(null, false, true, 256)));
    outcomes.put("pcm", refused("pcm", () -> context.transcribe(null, 16000, 64)));
    outcomes.put("config", refused("config", () -> context.open(null)));
    try (Stream stream = context.open(new Config())) {
      outcomes.put("tokens", refused("tokens", () -> stream.prefill((int[]) null)));
      outcomes.put("save_slot", refused("file", () -> stream.saveSlot(null)));
      outcomes.put("restore_slot", refused("file", () -> stream.restoreSlot(null)));
    }
    played.put("null", outcomes);
    played.put(
        "null_static",
        Map.of(
            "family", refused("family", () -> Eliza.supported(null)),
            "folder", refused("folder", () -> Context.isBundle(null)),
            "name", refused("name", () -> Eliza.setEnvironment(null, "value"))));
  }

  private void wrongCapacities() {
    int[] ids = context.tokenize(Scenario.PROMPT, true, false);
    Map<String, Object> outcomes = new LinkedHashMap<>();
    try (Stream stream = context.open(new Config())) {
      stream.prefill(ids);
      outcomes.put("next_tokens", refused("tokenCapacity", () -> stream.next(-1, 256)));
      outcomes.put("next_text", refused("textCapacity", () -> stream.next(16, -1)));
    }
    outcomes.put("detokenize", refused("capacity", () -> context.detokenize(ids, false, true, -1)));
    outcomes.put(
        "transcribe", refused("capacity", () -> context.transcribe(new float[4], 16000, -1)));
    played.put("capacity", outcomes);
  }

  /** Used by another thread while {@code next} runs: the listener waits for that one. */
  private void busyStream() {
    Config config = new Config();
    Scenario.DRAFTING.accept(config);
    try (Stream stream = context.open(config)) {
      context.onVerified(
          event ->
              played.put("busy", CompletableFuture.supplyAsync(() -> everyCall(stream)).join()));
      stream.prefill(context.tokenize(Scenario.LOOP, true, false));
      while (!stream.next(16, 256).done()) {}
      context.onVerified(event -> played.put("closed_inside", outcome(stream::close)));
      stream.reset();
      stream.prefill(context.tokenize(Scenario.LOOP, true, false));
      while (!stream.next(16, 256).done()) {}
      context.onVerified(null);
    }
  }

  /** Closed while it runs {@code prefill}. */
  private void closedStream() {
    Stream stream = context.open(new Config());
    int[] words = context.tokenize(Scenario.LONG, true, false);
    CompletableFuture<Void> closing =
        CompletableFuture.runAsync(
            () -> {
              // Until it is prefill that is in the way.
              while (!outcome(stream::reset).equals("busy")) {}
              stream.close();
            });
    String ended;
    do {
      ended = outcome(() -> stream.prefill(words));
    } while (ended.equals("busy")); // with reset
    played.put("closing", ended);
    closing.join();
    played.put("closed", everyCall(stream));
    stream.cancel();
    stream.close();
  }

  private static Map<String, Object> everyCall(Stream stream) {
    Map<String, Object> outcomes = new LinkedHashMap<>();
    outcomes.put("prefill", outcome(() -> stream.prefill(1)));
    outcomes.put("next", outcome(() -> stream.next(16, 256)));
    outcomes.put("save_slot", outcome(() -> stream.saveSlot("unused.slot")));
    outcomes.put("restore_slot", outcome(() -> stream.restoreSlot("unused.slot")));
    outcomes.put("reset", outcome(stream::reset));
    outcomes.put("reset_keep", outcome(() -> stream.resetKeep(0)));
    return outcomes;
  }

  /**
   * Closed while other threads open the first streams: one loads the model, the other waits for it.
   * An end before theirs shows in one of the rounds.
   */
  private static String closedWhileOpening(String bundle) {
    for (int round = 0; round < 6; round++) {
      Context context = new Context(bundle);
      CountDownLatch begun = new CountDownLatch(2);
      CompletableFuture<String> one = opening(context, begun);
      CompletableFuture<String> other = opening(context, begun);
      try {
        begun.await();
        Thread.sleep(round);
      } catch (InterruptedException interrupted) {
        throw new AssertionError(interrupted);
      }
      context.close();
      for (String ended : List.of(one.join(), other.join())) {
        // Closed, should one not have come to open in time.
        if (!ended.equals("accepted") && !ended.equals("closed")) {
          return ended;
        }
      }
    }
    return "finished";
  }

  private static CompletableFuture<String> opening(Context context, CountDownLatch begun) {
    CompletableFuture<String> ended = new CompletableFuture<>();
    Runnable open =
        () -> {
          try (Stream stream = context.open(new Config())) {
            stream.prefill(1);
          }
        };
    new Thread(
            () -> {
              begun.countDown();
              ended.complete(outcome(open));
            })
        .start();
    return ended;
  }

  private void closedContext() {
    context.close();
    Map<String, Object> outcomes = new LinkedHashMap<>();
    outcomes.put("tokenize", outcome(() -> context.tokenize("", true, false)));
    outcomes.put("detokenize", outcome(() -> context.detokenize(new int[1], false, true, 256)));
    outcomes.put("transcribe", outcome(() -> context.transcribe(new float[4], 16000, 64)));
    outcomes.put("open", outcome(() -> context.open(new Config())));
    outcomes.put("set_verifier", outcome(() -> context.onVerified(null)));
    played.put("closed_context", outcomes);
    context.close();
  }

  /** The outcome of a call with a wrong argument, which the message has to name. */
  private static String refused(String argument, Runnable call) {
    try {
      call.run();
    } catch (IllegalArgumentException | NullPointerException refused) {
      return String.valueOf(refused.getMessage()).contains(argument)
          ? "refused"
          : "refused without its name: " + refused;
    }
    return "accepted";
  }

  private static String outcome(Runnable call) {
    try {
      call.run();
      return "accepted";
    } catch (IllegalStateException refused) {
      String message = refused.getMessage();
      return message.contains("busy") ? "busy" : message.endsWith("closed") ? "closed" : "refused";
    } catch (ElizaException refused) {
      if (refused.code() != ElizaException.CANCELLED) {
        throw refused;
      }
      return "cancelled";
    }
  }
}
