// libelizainference for Swift: the C functions, and classes that own what they hand out.

import Foundation

/// A failure of the library, with its own message.
struct ElizaError: Error, CustomStringConvertible {
  static let notImplemented: Int32 = -1
  static let invalidArgument: Int32 = -2
  static let bundleInvalid: Int32 = -3
  static let ffiFault: Int32 = -4
  static let outOfMemory: Int32 = -5
  static let abiMismatch: Int32 = -6
  static let cancelled: Int32 = -7

  /// `nil` where the library returned NULL in place of a handle: such failures have no code.
  let code: Int32?
  let message: String

  var description: String { message }
}

/// What is refused before the library is asked.
enum Misuse: Error, Equatable {
  /// A C string would end at the NUL in this argument.
  case containsNUL(argument: String)
  case negative(argument: String)
  /// Another call on the stream is running.
  case busy
}

/// What a stream generates and how. The fields are those of `eliza_llm_stream_config_t`, described
/// in `eliza-inference-ffi.h`.
struct StreamSettings {
  var maxTokens: Int32 = 0
  var temperature: Float = 0
  var topP: Float = 0
  var topK: Int32 = 0
  var repeatPenalty: Float = 0
  var slotID: Int32 = -1
  var promptCacheKey: String?
  var draftMin: Int32 = 0
  var draftMax: Int32 = 0
  var mtpDrafterPath: String?
  var gbnfGrammar: String?
  var disableThinking = false
  var gpuLayers: Int32 = 0
  var cacheTypeK: String?
  var cacheTypeV: String?
}

/// What one call of `LlmStream.next` delivers.
struct Step {
  let isFinal: Bool
  let tokens: [Int32]
  let text: String
  let drafted: Int32
  let accepted: Int32
}

/// One speculative step. Positions count the tokens of the generation; -1 stands for none.
struct VerifierEvent {
  let accepted: [Int32]
  let rejectedFrom: Int32
  let rejectedTo: Int32
  let corrected: [Int32]
}

/// A bundle's models. Usable from any thread; its streams may outlive it.
final class Context: @unchecked Sendable {
  fileprivate let handle: OpaquePointer
  private var verifier: Verifier?

  init(bundle: String) throws {
    _ = layoutsAreThoseOfC
    try requireNoNUL("bundle", bundle)
    handle = try opened { eliza_inference_create(bundle, $0) }
  }

  deinit {
    // Streams that outlive the context would go on calling a verifier that goes with it.
    if verifier != nil { eliza_inference_set_verifier_callback(handle, nil, nil, nil) }
    eliza_inference_destroy(handle)
  }

  /// All of the text, with NULs in it or not: its length goes along.
  func tokenize(
    _ text: String, addSpecial: Bool = true, parseSpecial: Bool = false
  ) throws -> [Int32] {
    var tokens: UnsafeMutablePointer<Int32>?
    var count = 0
    defer { eliza_inference_free_tokens(tokens) }
    try checked(keeping: self) {
      eliza_inference_tokenize(
        handle, text, text.utf8.count, addSpecial ? 1 : 0, parseSpecial ? 1 : 0, &tokens, &count, $0
      )
    }
    return Array(UnsafeBufferPointer(start: tokens, count: count))
  }

  /// The text of `tokens`; fails where it needs more than `capacity` bytes, terminator included.
  func detokenize(
    _ tokens: [Int32], removeSpecial: Bool = false, unparseSpecial: Bool = true, capacity: Int
  ) throws -> String {
    try requireNotNegative("capacity", capacity)
    return try withUnsafeTemporaryAllocation(of: UInt8.self, capacity: capacity) { text in
      let size = try checked(keeping: self) {
        eliza_inference_detokenize(
          handle, tokens, tokens.count, removeSpecial ? 1 : 0, unparseSpecial ? 1 : 0,
          text.baseAddress, text.count, $0)
      }
      return String(decoding: text.prefix(Int(size)), as: UTF8.self)
    }
  }

  func transcribe(_ samples: [Float], sampleRate: Int32, capacity: Int) throws -> String {
    try requireNotNegative("capacity", capacity)
    return try withUnsafeTemporaryAllocation(of: UInt8.self, capacity: capacity) { text in
      let size = try checked(keeping: self) {
        eliza_inference_asr_transcribe(
          handle, samples, samples.count, sampleRate, text.baseAddress, text.count, $0)
      }
      return String(decoding: text.prefix(Int(size)), as: UTF8.self)
    }
  }

  /// Reports the speculative steps of all streams to `report`, on the thread that runs `next`;
  /// `nil` ends that. `report` may call `LlmStream.cancel` and nothing else of the library. Not to
  /// be called on two threads at once.
  func setVerifier(_ report: ((VerifierEvent) -> Void)?) throws {
    let next = report.map(Verifier.init)
    try checked(keeping: self) {
      eliza_inference_set_verifier_callback(
        handle, next == nil ? nil : reportToVerifier,
        next.map { Unmanaged.passUnretained($0).toOpaque() }, $0)
    }
    verifier = next  // The library has let go of the one before.
  }
}

/// One sequence of tokens. It serves one call at a time and throws `Misuse.busy` from a second one;
/// `cancel` may be called on any thread. There is no `close`: the stream closes with its last
/// reference, and every call holds one, so none runs on a closed stream.
final class LlmStream: @unchecked Sendable {
  private let handle: OpaquePointer
  private let calls = NSLock()

  init(_ context: Context, _ settings: StreamSettings = StreamSettings()) throws {
    handle = try withExtendedLifetime(context) {
      try settings.withConfig { config in
        try opened { eliza_inference_llm_stream_open(context.handle, config, $0) }
      }
    }
  }

  deinit { eliza_inference_llm_stream_close(handle) }

  /// Blocks until the tokens are decoded.
  func prefill(_ tokens: [Int32]) throws {
    try run {
      eliza_inference_llm_stream_prefill(handle, tokens, tokens.count, $0)
    }
  }

  /// Blocks for one model step. `text` ends between two code points, which need not be the end of
  /// what a reader sees as one character.
  func next(tokenCapacity: Int = 16, textCapacity: Int = 256) throws -> Step {
    try requireNotNegative("tokenCapacity", tokenCapacity)
    try requireNotNegative("textCapacity", textCapacity)
    return try withUnsafeTemporaryAllocation(of: Int32.self, capacity: tokenCapacity) { tokens in
      try withUnsafeTemporaryAllocation(of: UInt8.self, capacity: textCapacity) { text in
        var count = 0
        var drafted: Int32 = 0
        var accepted: Int32 = 0
        let code = try run {
          eliza_inference_llm_stream_next(
            handle, tokens.baseAddress, tokens.count, &count, text.baseAddress, text.count,
            &drafted, &accepted, $0)
        }
        return Step(
          isFinal: code == 1, tokens: Array(tokens.prefix(count)),
          text: String(decoding: text.prefix { $0 != 0 }, as: UTF8.self),
          drafted: drafted, accepted: accepted)
      }
    }
  }

  /// Makes a running `prefill` or `next`, and all later ones until a reset, throw `cancelled`.
  func cancel() {
    withExtendedLifetime(self) { _ = eliza_inference_llm_stream_cancel(handle) }
  }

  func reset() throws {
    try run { _ in eliza_inference_llm_stream_reset(handle) }
  }

  /// Resets but for the first `count` tokens; returns how many were kept.
  func reset(keeping count: Int32) throws -> Int32 {
    try run { _ in eliza_inference_llm_stream_reset_keep(handle, count) }
  }

  func saveSlot(_ file: String) throws {
    try requireNoNUL("file", file)
    try run { eliza_inference_llm_stream_save_slot(handle, file, $0) }
  }

  func restoreSlot(_ file: String) throws {
    try requireNoNUL("file", file)
    try run { eliza_inference_llm_stream_restore_slot(handle, file, $0) }
  }

  @discardableResult
  private func run(_ call: (ErrorMessage) -> Int32) throws -> Int32 {
    guard calls.try() else { throw Misuse.busy }
    defer { calls.unlock() }
    return try checked(keeping: self, call)
  }
}

private func requireNoNUL(_ argument: String, _ text: String) throws {
  if text.utf8.contains(0) { throw Misuse.containsNUL(argument: argument) }
}

private func requireNotNegative(_ argument: String, _ capacity: Int) throws {
  if capacity < 0 { throw Misuse.negative(argument: argument) }
}

/// Where a call leaves its message.
typealias ErrorMessage = UnsafeMutablePointer<UnsafeMutablePointer<CChar>?>

private func opened(_ open: (ErrorMessage) -> OpaquePointer?) throws -> OpaquePointer {
  var message: UnsafeMutablePointer<CChar>?
  if let handle = open(&message) { return handle }
  throw ElizaError(code: nil, message: taken(message) ?? "the library gave no message")
}

/// What `call` returns, unless it is an error code. An object may go after its last use, which can
/// be the read of its handle: `owner` is held until the call has returned.
@discardableResult
private func checked(keeping owner: AnyObject, _ call: (ErrorMessage) -> Int32) throws -> Int32 {
  var message: UnsafeMutablePointer<CChar>?
  let code = withExtendedLifetime(owner) { call(&message) }
  if code >= 0 { return code }
  throw ElizaError(code: code, message: taken(message) ?? "the library returned \(code)")
}

private func taken(_ message: UnsafeMutablePointer<CChar>?) -> String? {
  defer { eliza_inference_free_string(message) }
  return message.map { String(cString: $0) }
}

private final class Verifier {
  let report: (VerifierEvent) -> Void

  init(_ report: @escaping (VerifierEvent) -> Void) { self.report = report }
}

private func reportToVerifier(event: UnsafeRawPointer?, verifier: UnsafeMutableRawPointer?) {
  guard let event = event?.load(as: EliVerifierEvent.self), let verifier else { return }
  Unmanaged<Verifier>.fromOpaque(verifier).takeUnretainedValue().report(
    VerifierEvent(
      accepted: Array(UnsafeBufferPointer(start: event.accepted, count: event.acceptedCount)),
      rejectedFrom: event.rejectedFrom, rejectedTo: event.rejectedTo,
      corrected: Array(UnsafeBufferPointer(start: event.corrected, count: event.correctedCount))))
}

extension StreamSettings {
  fileprivate func withConfig<Result>(
    _ body: (UnsafePointer<LlmStreamConfig>) throws -> Result
  ) throws -> Result {
    var copies: [UnsafeMutablePointer<CChar>] = []
    defer { for copy in copies { free(copy) } }
    // The pointer that a String turns into for a call is dead when the call returns.
    func copied(_ argument: String, _ text: String?) throws -> UnsafePointer<CChar>? {
      guard let text else { return nil }
      try requireNoNUL(argument, text)
      guard let copy = strdup(text) else { return nil }
      copies.append(copy)
      return UnsafePointer(copy)
    }
    var config = LlmStreamConfig(
      maxTokens: maxTokens, temperature: temperature, topP: topP, topK: topK,
      repeatPenalty: repeatPenalty, slotID: slotID,
      promptCacheKey: try copied("promptCacheKey", promptCacheKey),
      draftMin: draftMin, draftMax: draftMax,
      mtpDrafterPath: try copied("mtpDrafterPath", mtpDrafterPath),
      gbnfGrammar: try copied("gbnfGrammar", gbnfGrammar),
      disableThinking: disableThinking ? 1 : 0, gpuLayers: gpuLayers,
      cacheTypeK: try copied("cacheTypeK", cacheTypeK),
      cacheTypeV: try copied("cacheTypeV", cacheTypeV))
    return try body(&config)
  }
}

// MARK: - The C interface
//
// Swift lays structs of such fields out as C does, but does not promise it. `@_silgen_name` calls a
// symbol as if it were a Swift function, which passes integers, pointers and floats as C does; the
// parameters must be those of the header, for nothing checks them.

/// `eliza_llm_stream_config_t`
struct LlmStreamConfig {
  var maxTokens: Int32
  var temperature: Float
  var topP: Float
  var topK: Int32
  var repeatPenalty: Float
  var slotID: Int32
  var promptCacheKey: UnsafePointer<CChar>?
  var draftMin: Int32
  var draftMax: Int32
  var mtpDrafterPath: UnsafePointer<CChar>?
  var gbnfGrammar: UnsafePointer<CChar>?
  var disableThinking: Int32
  var gpuLayers: Int32
  var cacheTypeK: UnsafePointer<CChar>?
  var cacheTypeV: UnsafePointer<CChar>?
}

struct EliVerifierEvent {
  var accepted: UnsafePointer<Int32>?
  var acceptedCount: Int
  var rejectedFrom: Int32
  var rejectedTo: Int32
  var corrected: UnsafePointer<Int32>?
  var correctedCount: Int
}

private let layoutsAreThoseOfC: Void = {
  func require<Struct>(
    _: Struct.Type, size: Int, offsets: KeyValuePairs<PartialKeyPath<Struct>, Int>
  ) {
    precondition(MemoryLayout<Struct>.size == size)
    for (field, offset) in offsets {
      precondition(MemoryLayout<Struct>.offset(of: field) == offset)
    }
  }
  require(
    LlmStreamConfig.self, size: 80,
    offsets: [
      \.maxTokens: 0, \.temperature: 4, \.topP: 8, \.topK: 12, \.repeatPenalty: 16, \.slotID: 20,
      \.promptCacheKey: 24, \.draftMin: 32, \.draftMax: 36, \.mtpDrafterPath: 40,
      \.gbnfGrammar: 48, \.disableThinking: 56, \.gpuLayers: 60, \.cacheTypeK: 64,
      \.cacheTypeV: 72,
    ])
  require(
    EliVerifierEvent.self, size: 40,
    offsets: [
      \.accepted: 0, \.acceptedCount: 8, \.rejectedFrom: 16, \.rejectedTo: 20, \.corrected: 24,
      \.correctedCount: 32,
    ])
}()

/// Gets an `EliVerifierEvent`, untyped: a C function type cannot name a Swift struct.
typealias VerifierCallback =
  @convention(c) (_ event: UnsafeRawPointer?, _ userData: UnsafeMutableRawPointer?) -> Void

@_silgen_name("eliza_inference_abi_version")
func eliza_inference_abi_version() -> UnsafePointer<CChar>

@_silgen_name("eliza_inference_create")
func eliza_inference_create(
  _ bundle: UnsafePointer<CChar>?, _ message: ErrorMessage?
) -> OpaquePointer?

@_silgen_name("eliza_inference_destroy")
func eliza_inference_destroy(_ context: OpaquePointer?)

@_silgen_name("eliza_inference_free_string")
func eliza_inference_free_string(_ string: UnsafeMutablePointer<CChar>?)

@_silgen_name("eliza_inference_free_tokens")
func eliza_inference_free_tokens(_ tokens: UnsafeMutablePointer<Int32>?)

@_silgen_name("eliza_inference_tokenize")
func eliza_inference_tokenize(
  _ context: OpaquePointer?, _ text: UnsafePointer<CChar>?, _ length: Int, _ addSpecial: Int32,
  _ parseSpecial: Int32, _ tokens: UnsafeMutablePointer<UnsafeMutablePointer<Int32>?>?,
  _ count: UnsafeMutablePointer<Int>?, _ message: ErrorMessage?
) -> Int32

@_silgen_name("eliza_inference_detokenize")
func eliza_inference_detokenize(
  _ context: OpaquePointer?, _ tokens: UnsafePointer<Int32>?, _ count: Int, _ removeSpecial: Int32,
  _ unparseSpecial: Int32, _ text: UnsafeMutablePointer<UInt8>?, _ capacity: Int,
  _ message: ErrorMessage?
) -> Int32

@_silgen_name("eliza_inference_llm_stream_open")
func eliza_inference_llm_stream_open(
  _ context: OpaquePointer?, _ config: UnsafePointer<LlmStreamConfig>?, _ message: ErrorMessage?
) -> OpaquePointer?

@_silgen_name("eliza_inference_llm_stream_prefill")
func eliza_inference_llm_stream_prefill(
  _ stream: OpaquePointer?, _ tokens: UnsafePointer<Int32>?, _ count: Int, _ message: ErrorMessage?
) -> Int32

@_silgen_name("eliza_inference_llm_stream_next")
func eliza_inference_llm_stream_next(
  _ stream: OpaquePointer?, _ tokens: UnsafeMutablePointer<Int32>?, _ tokenCapacity: Int,
  _ count: UnsafeMutablePointer<Int>?, _ text: UnsafeMutablePointer<UInt8>?, _ textCapacity: Int,
  _ drafted: UnsafeMutablePointer<Int32>?, _ accepted: UnsafeMutablePointer<Int32>?,
  _ message: ErrorMessage?
) -> Int32

@_silgen_name("eliza_inference_llm_stream_cancel")
func eliza_inference_llm_stream_cancel(_ stream: OpaquePointer?) -> Int32

@_silgen_name("eliza_inference_llm_stream_reset")
func eliza_inference_llm_stream_reset(_ stream: OpaquePointer?) -> Int32

@_silgen_name("eliza_inference_llm_stream_reset_keep")
func eliza_inference_llm_stream_reset_keep(_ stream: OpaquePointer?, _ count: Int32) -> Int32

@_silgen_name("eliza_inference_llm_stream_save_slot")
func eliza_inference_llm_stream_save_slot(
  _ stream: OpaquePointer?, _ file: UnsafePointer<CChar>?, _ message: ErrorMessage?
) -> Int32

@_silgen_name("eliza_inference_llm_stream_restore_slot")
func eliza_inference_llm_stream_restore_slot(
  _ stream: OpaquePointer?, _ file: UnsafePointer<CChar>?, _ message: ErrorMessage?
) -> Int32

@_silgen_name("eliza_inference_llm_stream_close")
func eliza_inference_llm_stream_close(_ stream: OpaquePointer?)

@discardableResult
@_silgen_name("eliza_inference_set_verifier_callback")
func eliza_inference_set_verifier_callback(
  _ context: OpaquePointer?, _ callback: VerifierCallback?, _ userData: UnsafeMutableRawPointer?,
  _ message: ErrorMessage?
) -> Int32

@_silgen_name("eliza_inference_asr_transcribe")
func eliza_inference_asr_transcribe(
  _ context: OpaquePointer?, _ samples: UnsafePointer<Float>?, _ count: Int, _ sampleRate: Int32,
  _ text: UnsafeMutablePointer<UInt8>?, _ capacity: Int, _ message: ErrorMessage?
) -> Int32

@_silgen_name("eliza_inference_llm_stream_supported")
func eliza_inference_llm_stream_supported() -> Int32

@_silgen_name("eliza_inference_llm_mtp_supported")
func eliza_inference_llm_mtp_supported() -> Int32

@_silgen_name("eliza_inference_llm_kv_quant_supported")
func eliza_inference_llm_kv_quant_supported() -> Int32

@_silgen_name("eliza_inference_tokenize_supported")
func eliza_inference_tokenize_supported() -> Int32

@_silgen_name("eliza_inference_tts_stream_supported")
func eliza_inference_tts_stream_supported() -> Int32

@_silgen_name("eliza_inference_asr_stream_supported")
func eliza_inference_asr_stream_supported() -> Int32

@_silgen_name("eliza_inference_vad_supported")
func eliza_inference_vad_supported() -> Int32

@_silgen_name("eliza_inference_wakeword_supported")
func eliza_inference_wakeword_supported() -> Int32

@_silgen_name("eliza_inference_speaker_supported")
func eliza_inference_speaker_supported() -> Int32

@_silgen_name("eliza_inference_diariz_supported")
func eliza_inference_diariz_supported() -> Int32

@_silgen_name("eliza_inference_asr_stream_close")
func eliza_inference_asr_stream_close(_ handle: OpaquePointer?)

@_silgen_name("eliza_inference_vad_close")
func eliza_inference_vad_close(_ handle: OpaquePointer?)

@_silgen_name("eliza_inference_wakeword_close")
func eliza_inference_wakeword_close(_ handle: OpaquePointer?)

@_silgen_name("eliza_inference_speaker_close")
func eliza_inference_speaker_close(_ handle: OpaquePointer?)

@_silgen_name("eliza_inference_diariz_close")
func eliza_inference_diariz_close(_ handle: OpaquePointer?)
