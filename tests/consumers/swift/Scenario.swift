// The scenario of ../README.md.

import Foundation

private let prompt = "The capital of France is"
private let smileys = "🙂🙃🙂🙃🙂🙃🙂"
private let loop = "one two three four one two three four one two"
private let mixed = "Hello, wörld! 🙂 日本語<|im_end|>"
private let long = String(repeating: "word ", count: 2000)

private typealias Json = [String: Any]

struct Unexpected: Error, CustomStringConvertible {
  let description: String
}

final class Scenario {
  private var transcript: Json = [:]
  private var cancelMilliseconds: [String: Double] = [:]
  private var context: Context!  // until its streams have to do without it

  /// The whole output, as JSON.
  func play(bundle: String) throws -> Data {
    try beforeTheContext()
    context = try Context(bundle: bundle)
    try withoutAStream()
    try onOneStream()
    try configuredStreams()
    try selection()
    try cancelled()
    nulls()
    return try JSONSerialization.data(
      withJSONObject: ["transcript": transcript, "cancel_ms": cancelMilliseconds])
  }

  private func beforeTheContext() throws {
    transcript["version"] = String(cString: eliza_inference_abi_version())
    transcript["probes"] = [
      "llm_stream": eliza_inference_llm_stream_supported(),
      "llm_mtp": eliza_inference_llm_mtp_supported(),
      "llm_kv_quant": eliza_inference_llm_kv_quant_supported(),
      "tokenize": eliza_inference_tokenize_supported(),
      "tts_stream": eliza_inference_tts_stream_supported(),
      "asr_stream": eliza_inference_asr_stream_supported(),
      "vad": eliza_inference_vad_supported(),
      "wakeword": eliza_inference_wakeword_supported(),
      "speaker": eliza_inference_speaker_supported(),
      "diariz": eliza_inference_diariz_supported(),
    ]
    let missing = "/no/such/bündle-🙂"
    transcript["bad_bundle"] = try refusal { _ = try Context(bundle: missing) }
    guard eliza_inference_create(missing, nil) == nil else {
      throw Unexpected(description: "a context was created without a bundle")
    }
  }

  private func withoutAStream() throws {
    transcript["voice"] = try failure {
      _ = try context.transcribe([0, 0, 0, 0], sampleRate: 16000, capacity: 64)
    }
    let special = try context.tokenize(mixed, parseSpecial: true)
    transcript["tokenize"] = ["plain": try context.tokenize(mixed), "special": special]
    let text = try context.detokenize(special, capacity: 256)
    transcript["detokenize"] = ["size": text.utf8.count, "text": text]
    transcript["detokenize_small"] = try failure {
      _ = try context.detokenize(special, capacity: 4)
    }
  }

  private func onOneStream() throws {
    let stream = try open()
    let promptTokens = try context.tokenize(prompt)
    let smileyTokens = try context.tokenize(smileys)
    let andThen = try context.tokenize(" And then")

    transcript["first"] = try generation(stream, promptTokens)
    try stream.reset()
    transcript["again"] = try generation(stream, promptTokens, with: ["reset": 0])
    let kept = try stream.reset(keeping: 3)
    transcript["kept"] = try generation(
      stream, Array(promptTokens.dropFirst(3)), with: ["reset_keep": kept])
    transcript["continued"] = try generation(stream, andThen)
    transcript["bad_token"] = try failure { try stream.prefill([999999]) }
    transcript["no_token"] = try failure { try stream.prefill([]) }

    try stream.reset()
    transcript["split"] = try generation(stream, smileyTokens)
    try stream.reset()
    transcript["tiny"] = try generation(stream, smileyTokens, tokenCapacity: 1, textCapacity: 5)
    try stream.reset()
    var cramped = try generation(stream, smileyTokens, textCapacity: 2)
    cramped["then"] = try step(stream)
    transcript["cramped"] = cramped

    try stream.reset()
    try stream.prefill(promptTokens)
    for _ in 1...4 { _ = try stream.next() }
    try stream.saveSlot("talk.slot")
    let second = try open()
    try second.restoreSlot("talk.slot")
    transcript["saved"] = try generation(second, andThen, with: ["save": 0, "restore": 0])
    transcript["missing_slot"] = try failure { try stream.restoreSlot("missing.slot") }
  }

  private func configuredStreams() throws {
    transcript["sampled"] = try generation(prompt) {
      $0.temperature = 0.8
      $0.topP = 0.9
      $0.topK = 40
      $0.repeatPenalty = 1.2
    }
    transcript["grammar"] = try generation(prompt) { $0.gbnfGrammar = #"root ::= " yes" | " no""# }
    transcript["keyed"] = try (1...2).map { _ in
      try generation(prompt) {
        $0.slotID = 3
        $0.promptCacheKey = "talk"
      }
    }

    var events: [Json] = []
    try context.setVerifier { event in
      events.append([
        "accepted": event.accepted, "rejected_from": event.rejectedFrom,
        "rejected_to": event.rejectedTo, "corrected": event.corrected,
      ])
    }
    var drafted = try generation(loop) {
      $0.maxTokens = 40
      $0.draftMin = 1
      $0.draftMax = 4
      $0.cacheTypeK = "q8_0"
      $0.cacheTypeV = "q8_0"
    }
    try context.setVerifier(nil)
    drafted["events"] = events
    transcript["drafted"] = drafted

    transcript["failed_open"] = [
      try refusal { _ = try open { $0.cacheTypeK = "q3_9" } },
      try refusal { _ = try open { $0.cacheTypeV = "q3_9" } },
      try refusal { _ = try open { $0.mtpDrafterPath = "/no/such/drafter.gguf" } },
      try refusal { _ = try open { $0.gbnfGrammar = "root ::= (" } },
    ]
  }

  private func selection() throws {
    setenv("ELIZA_LLM_BACKEND", "no-such-runtime", 1)
    let message = try error { _ = try open() }.message
    transcript["hard_select"] = [
      "opened": false, "message": String(message.prefix { !$0.isNewline }),
    ]
    setenv("ELIZA_LLM_BACKEND", "LlamaCpp", 1)
    transcript["selected"] = try generation(prompt)
    unsetenv("ELIZA_LLM_BACKEND")
  }

  private func cancelled() throws {
    let promptTokens = try context.tokenize(prompt)
    let stream = try open { $0.maxTokens = 0 }
    try stream.prefill(context.tokenize(loop))
    let next = try stopped("next", stream) { while true { _ = try stream.next() } }
    var cancelNext: Json = [
      "code": next.code as Any? ?? NSNull(),
      "next": try failure { _ = try stream.next() },
      "prefill": try failure { try stream.prefill(promptTokens) },
    ]
    try stream.reset()
    cancelNext["reset"] = 0
    try stream.prefill(promptTokens)
    cancelNext["steps"] = try steps(stream, 4)
    transcript["cancel_next"] = cancelNext

    try stream.reset()
    let longTokens = try context.tokenize(long)
    var cancelPrefill = json(try stopped("prefill", stream) { try stream.prefill(longTokens) })
    try stream.reset()
    cancelPrefill["reset"] = 0
    try stream.prefill(promptTokens)
    cancelPrefill["steps"] = try steps(stream, 4)
    transcript["cancel_prefill"] = cancelPrefill

    try stream.reset()
    try stream.prefill(promptTokens)
    context = nil  // the last reference: this destroys it
    transcript["outlived"] = ["steps": try steps(stream, 4)]
  }

  private func nulls() {
    eliza_inference_destroy(nil)
    eliza_inference_llm_stream_close(nil)
    eliza_inference_asr_stream_close(nil)
    eliza_inference_vad_close(nil)
    eliza_inference_wakeword_close(nil)
    eliza_inference_speaker_close(nil)
    eliza_inference_diariz_close(nil)
    eliza_inference_free_string(nil)
    eliza_inference_free_tokens(nil)
    transcript["nulls"] = true
  }

  private func open(_ configure: (inout StreamSettings) -> Void = { _ in }) throws -> LlmStream {
    var settings = StreamSettings(maxTokens: 16)
    configure(&settings)
    return try LlmStream(context, settings)
  }

  /// The generation of a stream of its own.
  private func generation(
    _ text: String, _ configure: (inout StreamSettings) -> Void = { _ in }
  ) throws -> Json {
    try generation(open(configure), context.tokenize(text))
  }

  private func generation(
    _ stream: LlmStream, _ tokens: [Int32], with more: Json = [:], tokenCapacity: Int = 16,
    textCapacity: Int = 256
  ) throws -> Json {
    try stream.prefill(tokens)
    var steps: [Json] = []
    repeat {
      steps.append(try step(stream, tokenCapacity: tokenCapacity, textCapacity: textCapacity))
    } while steps.last?["code"] as? Int32 == 0
    return more.merging(["prefill": 0, "steps": steps]) { $1 }
  }

  private func steps(_ stream: LlmStream, _ count: Int) throws -> [Json] {
    try (1...count).map { _ in try step(stream) }
  }

  private func step(
    _ stream: LlmStream, tokenCapacity: Int = 16, textCapacity: Int = 256
  ) throws -> Json {
    do {
      let step = try stream.next(tokenCapacity: tokenCapacity, textCapacity: textCapacity)
      return [
        "code": Int32(step.isFinal ? 1 : 0), "tokens": step.tokens, "text": step.text,
        "drafted": step.drafted, "accepted": step.accepted,
      ]
    } catch let error as ElizaError {
      return json(error)
    }
  }

  /// The failure that `call` ends with, since another thread cancels `stream` meanwhile.
  private func stopped(
    _ name: String, _ stream: LlmStream, _ call: () throws -> Void
  ) throws -> ElizaError {
    var calledAt = DispatchTime.now()
    let cancelling = DispatchWorkItem {
      calledAt = DispatchTime.now()
      stream.cancel()
    }
    DispatchQueue.global().asyncAfter(deadline: .now() + 0.05, execute: cancelling)
    let failure = try error(call)
    let returnedAt = DispatchTime.now()
    cancelling.wait()
    cancelMilliseconds[name] =
      Double(returnedAt.uptimeNanoseconds - calledAt.uptimeNanoseconds) / 1e6
    return failure
  }

  private func failure(_ call: () throws -> Void) throws -> Json { json(try error(call)) }

  private func refusal(_ call: () throws -> Void) throws -> Json {
    ["opened": false, "message": try error(call).message]
  }

  private func error(_ call: () throws -> Void) throws -> ElizaError {
    do { try call() } catch let error as ElizaError { return error }
    throw Unexpected(description: "a call succeeded that must fail")
  }

  private func json(_ error: ElizaError) -> Json {
    ["code": error.code as Any? ?? NSNull(), "message": error.message]
  }
}
