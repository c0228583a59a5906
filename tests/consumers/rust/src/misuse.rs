//! The misuse of ../../README.md: what callers may get wrong, and what they are told.
//!
//! The types leave little of it. What they refuse is stated first: it would not compile otherwise.

use crate::eliza::{Canceller, Config, Context, Error, Result, Step, Stream};
use crate::json::{Json, Object};
use crate::{Outcome, TEXT_CAP};

const NUL: &str = "a\0b";

/// No second call begins on a stream while one runs, from whichever thread: each takes `&mut`. None
/// comes after its end, nor does its end come while one runs, since `drop` takes the stream itself.
const _: () = {
    let _: fn(&mut Stream, &[i32]) -> Result<()> = Stream::prefill;
    let _: fn(&mut Stream, usize, usize) -> Result<Step> = Stream::next;
    let _: fn(&mut Stream, &str) -> Result<()> = Stream::save_slot;
    let _: fn(&mut Stream, &str) -> Result<()> = Stream::restore_slot;
    let _: fn(&mut Stream) -> Result<()> = Stream::reset;
    let _: fn(&mut Stream, i32) -> Result<i32> = Stream::reset_keep;
    // The one that may, and does nothing after the end.
    let _: fn(&Canceller) = Canceller::cancel;
};

pub fn play(bundle: &str) -> Outcome<Json> {
    let context = Context::create(bundle)?;
    let mut stream = context.open(&Config::default())?;
    let config = Config::default;
    let configs = [
        (
            "prompt_cache_key",
            Config {
                prompt_cache_key: Some(NUL),
                ..config()
            },
        ),
        (
            "mtp_drafter_path",
            Config {
                mtp_drafter_path: Some(NUL),
                ..config()
            },
        ),
        (
            "gbnf_grammar",
            Config {
                gbnf_grammar: Some(NUL),
                ..config()
            },
        ),
        (
            "cache_type_k",
            Config {
                cache_type_k: Some(NUL),
                ..config()
            },
        ),
        (
            "cache_type_v",
            Config {
                cache_type_v: Some(NUL),
                ..config()
            },
        ),
    ];
    let mut nul: Object = vec![
        ("bundle", refused("bundle", Context::create(NUL))),
        ("save_slot", refused("path", stream.save_slot(NUL))),
        ("restore_slot", refused("path", stream.restore_slot(NUL))),
    ];
    for (field, config) in &configs {
        nul.push((field, refused(field, context.open(config))));
    }
    let whole = context.detokenize(&context.tokenize(NUL, false)?, TEXT_CAP)?;
    Ok(Json::from(vec![
        ("nul", nul.into()),
        ("whole_text", whole.into()),
    ]))
}

/// The outcome of a call with a wrong argument, which this binding, not the library, has to name.
fn refused<T>(argument: &str, outcome: Result<T>) -> Json {
    match outcome {
        Ok(_) => "accepted".into(),
        Err(Error { code: -2, message }) if message.starts_with(argument) => "refused".into(),
        Err(error) => error.message.into(),
    }
}
