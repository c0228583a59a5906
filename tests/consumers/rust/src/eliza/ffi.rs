//! The declarations of `eliza-inference-ffi.h` that are used here.

use std::ffi::{c_char, c_int, c_void};
use std::mem::{offset_of, size_of};

pub const ERR_INVALID_ARG: c_int = -2;

/// Opaque, and neither `Send` nor `Sync` behind a pointer: the wrappers below say what is.
#[repr(C)]
pub struct Handle {
    _opaque: [u8; 0],
}

#[repr(C)]
pub struct StreamConfig {
    pub max_tokens: i32,
    pub temperature: f32,
    pub top_p: f32,
    pub top_k: i32,
    pub repeat_penalty: f32,
    pub slot_id: i32,
    pub prompt_cache_key: *const c_char,
    pub draft_min: i32,
    pub draft_max: i32,
    pub mtp_drafter_path: *const c_char,
    pub gbnf_grammar: *const c_char,
    pub disable_thinking: i32,
    pub n_gpu_layers: i32,
    pub cache_type_k: *const c_char,
    pub cache_type_v: *const c_char,
}

#[repr(C)]
pub struct VerifierEvent {
    pub accepted_token_ids: *const c_int,
    pub n_accepted: usize,
    pub rejected_from: c_int,
    pub rejected_to: c_int,
    pub corrected_token_ids: *const c_int,
    pub n_corrected: usize,
}

// ABI 8, as frozen: a field that moves does not compile.
const _: () = {
    assert!(size_of::<StreamConfig>() == 80);
    assert!(offset_of!(StreamConfig, max_tokens) == 0);
    assert!(offset_of!(StreamConfig, temperature) == 4);
    assert!(offset_of!(StreamConfig, top_p) == 8);
    assert!(offset_of!(StreamConfig, top_k) == 12);
    assert!(offset_of!(StreamConfig, repeat_penalty) == 16);
    assert!(offset_of!(StreamConfig, slot_id) == 20);
    assert!(offset_of!(StreamConfig, prompt_cache_key) == 24);
    assert!(offset_of!(StreamConfig, draft_min) == 32);
    assert!(offset_of!(StreamConfig, draft_max) == 36);
    assert!(offset_of!(StreamConfig, mtp_drafter_path) == 40);
    assert!(offset_of!(StreamConfig, gbnf_grammar) == 48);
    assert!(offset_of!(StreamConfig, disable_thinking) == 56);
    assert!(offset_of!(StreamConfig, n_gpu_layers) == 60);
    assert!(offset_of!(StreamConfig, cache_type_k) == 64);
    assert!(offset_of!(StreamConfig, cache_type_v) == 72);
    assert!(size_of::<VerifierEvent>() == 40);
    assert!(offset_of!(VerifierEvent, accepted_token_ids) == 0);
    assert!(offset_of!(VerifierEvent, n_accepted) == 8);
    assert!(offset_of!(VerifierEvent, rejected_from) == 16);
    assert!(offset_of!(VerifierEvent, rejected_to) == 20);
    assert!(offset_of!(VerifierEvent, corrected_token_ids) == 24);
    assert!(offset_of!(VerifierEvent, n_corrected) == 32);
};

pub type VerifierCallback = unsafe extern "C" fn(*const VerifierEvent, *mut c_void);

#[link(name = "elizainference")]
extern "C" {
    pub fn eliza_inference_abi_version() -> *const c_char;
    pub fn eliza_inference_create(
        bundle_dir: *const c_char,
        out_error: *mut *mut c_char,
    ) -> *mut Handle;
    pub fn eliza_inference_destroy(ctx: *mut Handle);
    pub fn eliza_inference_free_string(string: *mut c_char);

    pub fn eliza_inference_llm_stream_supported() -> c_int;
    pub fn eliza_inference_llm_stream_open(
        ctx: *mut Handle,
        cfg: *const StreamConfig,
        out_error: *mut *mut c_char,
    ) -> *mut Handle;
    pub fn eliza_inference_llm_stream_prefill(
        stream: *mut Handle,
        token_ids: *const i32,
        num_tokens: usize,
        out_error: *mut *mut c_char,
    ) -> c_int;
    pub fn eliza_inference_llm_stream_next(
        stream: *mut Handle,
        tokens_out: *mut i32,
        tokens_cap: usize,
        num_tokens_out: *mut usize,
        text_out: *mut c_char,
        text_cap: usize,
        drafter_drafted_out: *mut i32,
        drafter_accepted_out: *mut i32,
        out_error: *mut *mut c_char,
    ) -> c_int;
    pub fn eliza_inference_llm_stream_cancel(stream: *mut Handle) -> c_int;
    pub fn eliza_inference_llm_stream_save_slot(
        stream: *mut Handle,
        filename: *const c_char,
        out_error: *mut *mut c_char,
    ) -> c_int;
    pub fn eliza_inference_llm_stream_restore_slot(
        stream: *mut Handle,
        filename: *const c_char,
        out_error: *mut *mut c_char,
    ) -> c_int;
    pub fn eliza_inference_llm_stream_reset(stream: *mut Handle) -> c_int;
    pub fn eliza_inference_llm_stream_reset_keep(stream: *mut Handle, n_keep: i32) -> c_int;
    pub fn eliza_inference_llm_stream_close(stream: *mut Handle);
    pub fn eliza_inference_llm_mtp_supported() -> c_int;
    pub fn eliza_inference_llm_kv_quant_supported() -> c_int;

    pub fn eliza_inference_set_verifier_callback(
        ctx: *mut Handle,
        cb: Option<VerifierCallback>,
        user_data: *mut c_void,
        out_error: *mut *mut c_char,
    ) -> c_int;

    pub fn eliza_inference_tokenize_supported() -> c_int;
    pub fn eliza_inference_tokenize(
        ctx: *mut Handle,
        text: *const c_char,
        text_len: usize,
        add_special: c_int,
        parse_special: c_int,
        out_tokens: *mut *mut c_int,
        out_n: *mut usize,
        out_error: *mut *mut c_char,
    ) -> c_int;
    pub fn eliza_inference_detokenize(
        ctx: *mut Handle,
        tokens: *const c_int,
        n_tokens: usize,
        remove_special: c_int,
        unparse_special: c_int,
        out_text: *mut c_char,
        max_text_bytes: usize,
        out_error: *mut *mut c_char,
    ) -> c_int;
    pub fn eliza_inference_free_tokens(tokens: *mut c_int);

    pub fn eliza_inference_asr_transcribe(
        ctx: *mut Handle,
        pcm: *const f32,
        n_samples: usize,
        sample_rate_hz: c_int,
        out_text: *mut c_char,
        max_text_bytes: usize,
        out_error: *mut *mut c_char,
    ) -> c_int;

    pub fn eliza_inference_tts_stream_supported() -> c_int;
    pub fn eliza_inference_asr_stream_supported() -> c_int;
    pub fn eliza_inference_asr_stream_close(asr: *mut Handle);
    pub fn eliza_inference_vad_supported() -> c_int;
    pub fn eliza_inference_vad_close(vad: *mut Handle);
    pub fn eliza_inference_wakeword_supported() -> c_int;
    pub fn eliza_inference_wakeword_close(wake: *mut Handle);
    pub fn eliza_inference_speaker_supported() -> c_int;
    pub fn eliza_inference_speaker_close(speaker: *mut Handle);
    pub fn eliza_inference_diariz_supported() -> c_int;
    pub fn eliza_inference_diariz_close(diariz: *mut Handle);
}
