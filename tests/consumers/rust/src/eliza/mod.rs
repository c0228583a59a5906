//! `libelizainference` for Rust, on the standard library alone.
//!
//! Who may do what from where is in the types: a [`Context`] is shared freely; a [`Stream`] moves
//! between threads and is used through `&mut`, so by one thread at a time; a [`Canceller`] cancels
//! it from any thread meanwhile, and does nothing once the stream is gone.

use std::ffi::{c_char, c_int, c_void, CStr, CString};
use std::fmt;
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::ptr::{null, null_mut, NonNull};
use std::sync::{Arc, Mutex, PoisonError, Weak};

mod ffi;

/// A failed call: the library's code and its message. `create` and `open` tell no code: 0.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error {
    pub code: i32,
    pub message: String,
}

impl fmt::Display for Error {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.message)
    }
}

impl std::error::Error for Error {}

pub type Result<T> = std::result::Result<T, Error>;

/// Receives the `out_error` of one call, and frees what it received.
struct Message(*mut c_char);

impl Message {
    fn none() -> Self {
        Message(null_mut())
    }

    fn out(&mut self) -> *mut *mut c_char {
        &mut self.0
    }

    fn into_error(self, code: i32) -> Error {
        let message = if self.0.is_null() {
            String::new()
        } else {
            // SAFETY: the library set it to a NUL-terminated string that is ours.
            let text = unsafe { CStr::from_ptr(self.0) };
            text.to_string_lossy().into_owned()
        };
        Error { code, message }
    }

    fn check(self, code: c_int) -> Result<c_int> {
        if code < 0 {
            return Err(self.into_error(code));
        }
        Ok(code)
    }

    fn check_handle(self, handle: *mut ffi::Handle) -> Result<NonNull<ffi::Handle>> {
        NonNull::new(handle).ok_or_else(|| self.into_error(0))
    }
}

impl Drop for Message {
    fn drop(&mut self) {
        // SAFETY: NULL, or a string of the library that nobody else frees.
        unsafe { ffi::eliza_inference_free_string(self.0) }
    }
}

/// A string for C, which ends at the first NUL: one inside is an error, not a shorter string.
fn c_string(argument: &str, text: &str) -> Result<CString> {
    CString::new(text).map_err(|_| Error {
        code: ffi::ERR_INVALID_ARG,
        message: format!("{argument} contains a NUL: {text:?}"),
    })
}

/// A copy of an array of ids.
///
/// # Safety
/// `ids` points to `count` of them, or to nothing where there are none: a slice may not be NULL.
unsafe fn ids_at(ids: *const c_int, count: usize) -> Vec<i32> {
    if count == 0 {
        return Vec::new();
    }
    unsafe { std::slice::from_raw_parts(ids, count) }.to_vec()
}

/// What `text_out` and its like hold after a call that succeeded.
fn text_of(buffer: &[u8]) -> String {
    let text = CStr::from_bytes_until_nul(buffer).unwrap_or_default();
    text.to_string_lossy().into_owned()
}

/// The ABI version of the library.
pub fn abi_version() -> &'static str {
    // SAFETY: static storage, never NULL, UTF-8.
    let version = unsafe { CStr::from_ptr(ffi::eliza_inference_abi_version()) };
    version.to_str().unwrap_or_default()
}

/// Which families of functions answer, by name.
pub fn supported() -> [(&'static str, i32); 10] {
    // SAFETY: these take nothing and may be called at any time.
    unsafe {
        [
            ("llm_stream", ffi::eliza_inference_llm_stream_supported()),
            ("llm_mtp", ffi::eliza_inference_llm_mtp_supported()),
            (
                "llm_kv_quant",
                ffi::eliza_inference_llm_kv_quant_supported(),
            ),
            ("tokenize", ffi::eliza_inference_tokenize_supported()),
            ("tts_stream", ffi::eliza_inference_tts_stream_supported()),
            ("asr_stream", ffi::eliza_inference_asr_stream_supported()),
            ("vad", ffi::eliza_inference_vad_supported()),
            ("wakeword", ffi::eliza_inference_wakeword_supported()),
            ("speaker", ffi::eliza_inference_speaker_supported()),
            ("diariz", ffi::eliza_inference_diariz_supported()),
        ]
    }
}

/// Every function that releases something, with NULL, which each of them accepts.
pub fn release_nulls() {
    // SAFETY: NULL is ignored.
    unsafe {
        ffi::eliza_inference_destroy(null_mut());
        ffi::eliza_inference_llm_stream_close(null_mut());
        ffi::eliza_inference_asr_stream_close(null_mut());
        ffi::eliza_inference_vad_close(null_mut());
        ffi::eliza_inference_wakeword_close(null_mut());
        ffi::eliza_inference_speaker_close(null_mut());
        ffi::eliza_inference_diariz_close(null_mut());
        ffi::eliza_inference_free_string(null_mut());
        ffi::eliza_inference_free_tokens(null_mut());
    }
}

/// What one stream generates and how; the header describes the fields. `..Config::default()` is
/// greedy decoding without a cap.
#[derive(Clone, Debug)]
pub struct Config<'a> {
    pub max_tokens: i32,
    pub temperature: f32,
    pub top_p: f32,
    pub top_k: i32,
    pub repeat_penalty: f32,
    pub slot_id: i32,
    pub prompt_cache_key: Option<&'a str>,
    pub draft_min: i32,
    pub draft_max: i32,
    pub mtp_drafter_path: Option<&'a str>,
    pub gbnf_grammar: Option<&'a str>,
    pub disable_thinking: bool,
    pub n_gpu_layers: i32,
    pub cache_type_k: Option<&'a str>,
    pub cache_type_v: Option<&'a str>,
}

impl Default for Config<'_> {
    fn default() -> Self {
        Config {
            max_tokens: 0,
            temperature: 0.0,
            top_p: 0.0,
            top_k: 0,
            repeat_penalty: 0.0,
            slot_id: -1, // 0 would name a conversation whose state is kept
            prompt_cache_key: None,
            draft_min: 0,
            draft_max: 0,
            mtp_drafter_path: None,
            gbnf_grammar: None,
            disable_thinking: false,
            n_gpu_layers: 0,
            cache_type_k: None,
            cache_type_v: None,
        }
    }
}

/// One step of the verifier of drafts; the header describes the fields.
#[derive(Clone, Debug)]
pub struct VerifierEvent {
    pub accepted: Vec<i32>,
    pub rejected_from: i32,
    pub rejected_to: i32,
    pub corrected: Vec<i32>,
}

/// `Sync`, since streams that generate in parallel call it at the same time.
type Verifier = Box<dyn Fn(VerifierEvent) + Send + Sync>;

/// A bundle; its weights are shared by all of its streams.
pub struct Context {
    handle: NonNull<ffi::Handle>,
    /// What the library's `user_data` points to: a thin pointer to a fat one, which stays in place.
    verifier: Mutex<Option<Arc<Verifier>>>,
}

// SAFETY: the header promises that a context may be used from any thread.
unsafe impl Send for Context {}
unsafe impl Sync for Context {}

impl Context {
    pub fn create(bundle: &str) -> Result<Self> {
        let bundle = c_string("bundle", bundle)?;
        let mut message = Message::none();
        // SAFETY: the inputs are borrowed for the call.
        let handle = unsafe { ffi::eliza_inference_create(bundle.as_ptr(), message.out()) };
        Ok(Context {
            handle: message.check_handle(handle)?,
            verifier: Mutex::new(None),
        })
    }

    /// The same without asking why it failed.
    pub fn create_or_none(bundle: &str) -> Option<Self> {
        let bundle = c_string("bundle", bundle).ok()?;
        // SAFETY: `out_error` may be NULL.
        let handle = unsafe { ffi::eliza_inference_create(bundle.as_ptr(), null_mut()) };
        NonNull::new(handle).map(|handle| Context {
            handle,
            verifier: Mutex::new(None),
        })
    }

    /// Opens a stream, which may outlive the context.
    pub fn open(&self, config: &Config<'_>) -> Result<Stream> {
        let strings = [
            ("prompt_cache_key", config.prompt_cache_key),
            ("mtp_drafter_path", config.mtp_drafter_path),
            ("gbnf_grammar", config.gbnf_grammar),
            ("cache_type_k", config.cache_type_k),
            ("cache_type_v", config.cache_type_v),
        ]
        .map(|(name, text)| text.map(|text| c_string(name, text)).transpose());
        let [key, drafter, grammar, cache_k, cache_v] = strings;
        let (key, drafter, grammar) = (key?, drafter?, grammar?);
        let (cache_k, cache_v) = (cache_k?, cache_v?);
        let pointer = |text: &Option<CString>| text.as_ref().map_or(null(), |text| text.as_ptr());

        let config = ffi::StreamConfig {
            max_tokens: config.max_tokens,
            temperature: config.temperature,
            top_p: config.top_p,
            top_k: config.top_k,
            repeat_penalty: config.repeat_penalty,
            slot_id: config.slot_id,
            prompt_cache_key: pointer(&key),
            draft_min: config.draft_min,
            draft_max: config.draft_max,
            mtp_drafter_path: pointer(&drafter),
            gbnf_grammar: pointer(&grammar),
            disable_thinking: config.disable_thinking.into(),
            n_gpu_layers: config.n_gpu_layers,
            cache_type_k: pointer(&cache_k),
            cache_type_v: pointer(&cache_v),
        };
        let mut message = Message::none();
        // SAFETY: the strings live until the end of this function, and are copied before.
        let handle = unsafe {
            ffi::eliza_inference_llm_stream_open(self.handle.as_ptr(), &config, message.out())
        };
        let handle = message.check_handle(handle)?;
        Ok(Stream(Arc::new(StreamHandle(handle))))
    }

    /// Token ids of a text, with the start (and end) tokens that the model asks for.
    pub fn tokenize(&self, text: &str, parse_special: bool) -> Result<Vec<i32>> {
        let mut tokens: *mut c_int = null_mut();
        let mut count = 0;
        let mut message = Message::none();
        // SAFETY: the length is passed, so the text needs no terminator, and may contain NULs.
        let code = unsafe {
            ffi::eliza_inference_tokenize(
                self.handle.as_ptr(),
                text.as_ptr().cast(),
                text.len(),
                1,
                parse_special.into(),
                &mut tokens,
                &mut count,
                message.out(),
            )
        };
        message.check(code)?;
        // SAFETY: the array has that many ids, is copied, and is ours to free.
        unsafe {
            let ids = ids_at(tokens, count);
            ffi::eliza_inference_free_tokens(tokens);
            Ok(ids)
        }
    }

    /// The text of token ids, special tokens spelled out; `capacity` counts the terminator.
    pub fn detokenize(&self, tokens: &[i32], capacity: usize) -> Result<String> {
        let mut text = vec![0_u8; capacity];
        let mut message = Message::none();
        // SAFETY: both lengths are those of the slices.
        let code = unsafe {
            ffi::eliza_inference_detokenize(
                self.handle.as_ptr(),
                tokens.as_ptr(),
                tokens.len(),
                0,
                1,
                text.as_mut_ptr().cast(),
                text.len(),
                message.out(),
            )
        };
        message.check(code)?;
        Ok(text_of(&text))
    }

    /// The text of mono PCM in [-1, 1]; not in this build.
    pub fn transcribe(&self, pcm: &[f32], sample_rate: i32, capacity: usize) -> Result<String> {
        let mut text = vec![0_u8; capacity];
        let mut message = Message::none();
        // SAFETY: both lengths are those of the slices.
        let code = unsafe {
            ffi::eliza_inference_asr_transcribe(
                self.handle.as_ptr(),
                pcm.as_ptr(),
                pcm.len(),
                sample_rate,
                text.as_mut_ptr().cast(),
                text.len(),
                message.out(),
            )
        };
        message.check(code)?;
        Ok(text_of(&text))
    }

    /// Calls `verifier` at each speculative step of all streams of this context, on the thread
    /// that runs `next`. It must not call this library, except [`Canceller::cancel`].
    pub fn set_verifier<F>(&self, verifier: F) -> Result<()>
    where
        F: Fn(VerifierEvent) + Send + Sync + 'static,
    {
        self.replace_verifier(Some(Arc::new(Box::new(verifier))))
    }

    pub fn clear_verifier(&self) -> Result<()> {
        self.replace_verifier(None)
    }

    fn replace_verifier(&self, verifier: Option<Arc<Verifier>>) -> Result<()> {
        let mut current = self.verifier.lock().unwrap_or_else(PoisonError::into_inner);
        let user_data = verifier.as_ref().map_or(null(), Arc::as_ptr);
        let callback = verifier.as_ref().map(|_| verified as ffi::VerifierCallback);
        let mut message = Message::none();
        // SAFETY: `current` keeps it until another call of this function has returned, and
        // then nothing calls it any more.
        let code = unsafe {
            ffi::eliza_inference_set_verifier_callback(
                self.handle.as_ptr(),
                callback,
                user_data.cast_mut().cast(),
                message.out(),
            )
        };
        message.check(code)?;
        *current = verifier;
        Ok(())
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // Streams outlive their context and would go on calling the verifier.
        if self.clear_verifier().is_err() {
            // Only from inside the callback: then it has to stay.
            let verifier = self
                .verifier
                .get_mut()
                .unwrap_or_else(PoisonError::into_inner);
            std::mem::forget(verifier.take());
        }
        // SAFETY: nothing uses the handle after this.
        unsafe { ffi::eliza_inference_destroy(self.handle.as_ptr()) }
    }
}

unsafe extern "C" fn verified(event: *const ffi::VerifierEvent, user_data: *mut c_void) {
    // A panic must not unwind into C.
    let outcome = catch_unwind(AssertUnwindSafe(|| {
        // SAFETY: `replace_verifier` passed this pointer, and keeps what it points to.
        let verifier = unsafe { &*user_data.cast::<Verifier>() };
        // SAFETY: the event and its arrays are valid during the callback.
        let event = unsafe {
            let event = &*event;
            VerifierEvent {
                accepted: ids_at(event.accepted_token_ids, event.n_accepted),
                rejected_from: event.rejected_from,
                rejected_to: event.rejected_to,
                corrected: ids_at(event.corrected_token_ids, event.n_corrected),
            }
        };
        verifier(event);
    }));
    if outcome.is_err() {
        std::process::abort();
    }
}

/// One call of `next`.
#[derive(Clone, Debug)]
pub struct Step {
    /// Whether it was the last one of the generation.
    pub done: bool,
    pub tokens: Vec<i32>,
    pub text: String,
    pub drafted: i32,
    pub accepted: i32,
}

/// Closes the stream when its last owner lets go. That is the [`Stream`], or a [`Canceller`] that
/// was just cancelling when the stream was dropped: close never begins while a cancel runs.
struct StreamHandle(NonNull<ffi::Handle>);

// SAFETY: `Canceller` only calls cancel, which any thread may until close begins; everything else
// goes through `&mut Stream`. No call is tied to the thread that opened the stream.
unsafe impl Send for StreamHandle {}
unsafe impl Sync for StreamHandle {}

impl Drop for StreamHandle {
    fn drop(&mut self) {
        // SAFETY: no call is running, nothing uses the handle after this.
        unsafe { ffi::eliza_inference_llm_stream_close(self.0.as_ptr()) }
    }
}

/// One sequence of tokens and what is generated on it.
pub struct Stream(Arc<StreamHandle>);

impl Stream {
    /// Appends prompt tokens and decodes them.
    pub fn prefill(&mut self, tokens: &[i32]) -> Result<()> {
        let mut message = Message::none();
        // SAFETY: the length is that of the slice, whose pointer is never NULL.
        let code = unsafe {
            ffi::eliza_inference_llm_stream_prefill(
                self.raw(),
                tokens.as_ptr(),
                tokens.len(),
                message.out(),
            )
        };
        message.check(code).map(drop)
    }

    /// Runs at most one model step. What finds no room comes with the next call; 16 tokens and 256
    /// bytes hold any ordinary step, 1 and 5 hold something.
    pub fn next(&mut self, tokens_cap: usize, text_cap: usize) -> Result<Step> {
        let mut tokens = vec![0; tokens_cap];
        let mut text = vec![0_u8; text_cap];
        let (mut count, mut drafted, mut accepted) = (0, 0, 0);
        let mut message = Message::none();
        // SAFETY: both capacities are those of the vectors.
        let code = unsafe {
            ffi::eliza_inference_llm_stream_next(
                self.raw(),
                tokens.as_mut_ptr(),
                tokens.len(),
                &mut count,
                text.as_mut_ptr().cast(),
                text.len(),
                &mut drafted,
                &mut accepted,
                message.out(),
            )
        };
        let done = message.check(code)? == 1;
        tokens.truncate(count);
        Ok(Step {
            done,
            tokens,
            text: text_of(&text),
            drafted,
            accepted,
        })
    }

    pub fn canceller(&self) -> Canceller {
        Canceller(Arc::downgrade(&self.0))
    }

    pub fn save_slot(&mut self, path: &str) -> Result<()> {
        let path = c_string("path", path)?;
        let mut message = Message::none();
        // SAFETY: the path is borrowed for the call.
        let code = unsafe {
            ffi::eliza_inference_llm_stream_save_slot(self.raw(), path.as_ptr(), message.out())
        };
        message.check(code).map(drop)
    }

    pub fn restore_slot(&mut self, path: &str) -> Result<()> {
        let path = c_string("path", path)?;
        let mut message = Message::none();
        // SAFETY: the path is borrowed for the call.
        let code = unsafe {
            ffi::eliza_inference_llm_stream_restore_slot(self.raw(), path.as_ptr(), message.out())
        };
        message.check(code).map(drop)
    }

    /// Starts over; after a cancel, this is what makes the stream usable again.
    pub fn reset(&mut self) -> Result<()> {
        // SAFETY: the handle is open. This call has no message.
        let code = unsafe { ffi::eliza_inference_llm_stream_reset(self.raw()) };
        Message::none().check(code).map(drop)
    }

    /// The same, but keeps the first tokens of the sequence; returns how many were kept.
    pub fn reset_keep(&mut self, keep: i32) -> Result<i32> {
        // SAFETY: the handle is open. This call has no message.
        let code = unsafe { ffi::eliza_inference_llm_stream_reset_keep(self.raw(), keep) };
        Message::none().check(code)
    }

    fn raw(&mut self) -> *mut ffi::Handle {
        self.0 .0.as_ptr()
    }
}

/// Cancels a stream from any thread. It does not keep the stream open.
#[derive(Clone)]
pub struct Canceller(Weak<StreamHandle>);

impl Canceller {
    /// A running `prefill` or `next` stops inside its step and fails with code -7, and so does
    /// every later one until `reset` or `reset_keep`. Does nothing once the stream was dropped.
    pub fn cancel(&self) {
        if let Some(stream) = self.0.upgrade() {
            // SAFETY: `stream` keeps close from beginning.
            unsafe { ffi::eliza_inference_llm_stream_cancel(stream.0.as_ptr()) };
        }
    }
}
