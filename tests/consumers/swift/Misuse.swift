// The misuse of ../README.md: what callers may get wrong, and what they are told.

import Foundation

private let text = "a\0b"

/// The whole output, as JSON.
func playMisuse(bundle: String) throws -> Data {
  let context = try Context(bundle: bundle)
  return try JSONSerialization.data(
    withJSONObject: [
      "nul": try nulInTexts(context),
      "whole_text": try context.detokenize(context.tokenize(text), capacity: 256),
      "capacity": try negativeCapacities(context),
      "busy": try busyStream(context),
    ])
}

private func nulInTexts(_ context: Context) throws -> [String: String] {
  let stream = try LlmStream(context)
  func opened(_ configure: (inout StreamSettings) -> Void) throws {
    var settings = StreamSettings()
    configure(&settings)
    _ = try LlmStream(context, settings)
  }
  func refused(_ argument: String, _ call: () throws -> Void) -> String {
    outcome(.containsNUL(argument: argument), call)
  }
  return [
    "bundle": refused("bundle") { _ = try Context(bundle: text) },
    "prompt_cache_key": refused("promptCacheKey") { try opened { $0.promptCacheKey = text } },
    "mtp_drafter_path": refused("mtpDrafterPath") { try opened { $0.mtpDrafterPath = text } },
    "gbnf_grammar": refused("gbnfGrammar") { try opened { $0.gbnfGrammar = text } },
    "cache_type_k": refused("cacheTypeK") { try opened { $0.cacheTypeK = text } },
    "cache_type_v": refused("cacheTypeV") { try opened { $0.cacheTypeV = text } },
    "save_slot": refused("file") { try stream.saveSlot(text) },
    "restore_slot": refused("file") { try stream.restoreSlot(text) },
  ]
}

private func negativeCapacities(_ context: Context) throws -> [String: String] {
  let stream = try LlmStream(context)
  func refused(_ argument: String, _ call: () throws -> Void) -> String {
    outcome(.negative(argument: argument), call)
  }
  return [
    "next_tokens": refused("tokenCapacity") { _ = try stream.next(tokenCapacity: -1) },
    "next_text": refused("textCapacity") { _ = try stream.next(textCapacity: -1) },
    "detokenize": refused("capacity") { _ = try context.detokenize([1], capacity: -1) },
    "transcribe": refused("capacity") {
      _ = try context.transcribe([0, 0], sampleRate: 16000, capacity: -1)
    },
  ]
}

/// Used on another thread while `next` runs: the verifier waits for that one.
private func busyStream(_ context: Context) throws -> [String: String] {
  let stream = try LlmStream(
    context,
    StreamSettings(
      maxTokens: 40, draftMin: 1, draftMax: 4, cacheTypeK: "q8_0", cacheTypeV: "q8_0"))
  var outcomes: [String: String] = [:]
  try context.setVerifier { _ in
    let calls = DispatchWorkItem {
      outcomes = [
        "prefill": outcome(.busy) { try stream.prefill([1]) },
        "next": outcome(.busy) { _ = try stream.next() },
        "save_slot": outcome(.busy) { try stream.saveSlot("unused.slot") },
        "restore_slot": outcome(.busy) { try stream.restoreSlot("unused.slot") },
        "reset": outcome(.busy) { try stream.reset() },
        "reset_keep": outcome(.busy) { _ = try stream.reset(keeping: 0) },
      ]
    }
    DispatchQueue.global().async(execute: calls)
    calls.wait()
  }
  try stream.prefill(context.tokenize("one two three four one two three four one two"))
  while try !stream.next().isFinal {}
  try context.setVerifier(nil)
  return outcomes
}

private func outcome(_ expected: Misuse, _ call: () throws -> Void) -> String {
  do { try call() } catch {
    guard let misuse = error as? Misuse, misuse == expected else { return "\(error)" }
    return misuse == .busy ? "busy" : "refused"
  }
  return "accepted"
}
