//! The scenario of ../../README.md in Rust. The library is the one that the program is linked with.

mod eliza;
mod json;
mod misuse;

use std::env;
use std::error;
use std::process::ExitCode;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use eliza::{Config, Context, Error, Step, Stream};
use json::{Json, Object};

const PROMPT: &str = "The capital of France is";
const SMILEYS: &str = "🙂🙃🙂🙃🙂🙃🙂";
const LOOP: &str = "one two three four one two three four one two";
const MIXED: &str = "Hello, wörld! 🙂 日本語<|im_end|>";
const TOKENS_CAP: usize = 16;
const TEXT_CAP: usize = 256;
const CANCEL_AFTER: Duration = Duration::from_millis(50);

type Outcome<T> = Result<T, Box<dyn error::Error>>;

fn main() -> ExitCode {
    let arguments: Vec<String> = env::args().collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let played = match arguments.as_slice() {
        [_, _, bundle] => play(bundle),
        [_, _, bundle, "misuse"] => misuse::play(bundle),
        _ => Err("usage: scenario LIBRARY BUNDLE [misuse]".into()),
    };
    match played {
        Ok(played) => {
            println!("{played}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("scenario: {error}");
            ExitCode::FAILURE
        }
    }
}

fn play(bundle: &str) -> Outcome<Json> {
    let mut transcript = Object::new();
    let mut cancel_ms = Object::new();
    before_the_context(&mut transcript)?;
    let context = Context::create(bundle)?;
    without_a_stream(&context, &mut transcript)?;
    on_one_stream(&context, &mut transcript)?;
    configured_streams(&context, &mut transcript)?;
    selection(&context, &mut transcript)?;
    cancelled(context, &mut transcript, &mut cancel_ms)?;
    eliza::release_nulls();
    transcript.push(("nulls", true.into()));
    Ok(Json::from(vec![
        ("transcript", transcript.into()),
        ("cancel_ms", cancel_ms.into()),
    ]))
}

fn before_the_context(transcript: &mut Object) -> Outcome<()> {
    let missing = "/no/such/bündle-🙂";
    let probes = eliza::supported().map(|(name, answer)| (name, answer.into()));
    let probes = Object::from(probes);
    transcript.push(("version", eliza::abi_version().into()));
    transcript.push(("probes", probes.into()));
    transcript.push(("bad_bundle", refusal(Context::create(missing))?));
    if Context::create_or_none(missing).is_some() {
        return Err("a context for a bundle that is not there".into());
    }
    Ok(())
}

fn without_a_stream(context: &Context, transcript: &mut Object) -> Outcome<()> {
    let voice = context.transcribe(&[0.0; 4], 16000, 64);
    transcript.push(("voice", failure(voice)?));

    let plain = context.tokenize(MIXED, false)?;
    let special = context.tokenize(MIXED, true)?;
    let text = context.detokenize(&special, TEXT_CAP)?;
    let small = context.detokenize(&special, 4);
    transcript.push((
        "tokenize",
        Json::from(vec![("plain", plain.into()), ("special", special.into())]),
    ));
    transcript.push((
        "detokenize",
        Json::from(vec![
            ("size", (text.len() as i32).into()),
            ("text", text.into()),
        ]),
    ));
    transcript.push(("detokenize_small", failure(small)?));
    Ok(())
}

fn on_one_stream(context: &Context, transcript: &mut Object) -> Outcome<()> {
    let mut stream = context.open(&usual())?;
    let prompt = context.tokenize(PROMPT, false)?;
    let smileys = context.tokenize(SMILEYS, false)?;
    let and_then = context.tokenize(" And then", false)?;

    transcript.push(("first", generate(&mut stream, &prompt).into()));

    stream.reset()?;
    let mut again = generate(&mut stream, &prompt);
    again.push(("reset", 0.into()));
    transcript.push(("again", again.into()));

    let count = stream.reset_keep(3)?;
    let mut kept = generate(&mut stream, &prompt[3..]);
    kept.push(("reset_keep", count.into()));
    transcript.push(("kept", kept.into()));

    transcript.push(("continued", generate(&mut stream, &and_then).into()));
    transcript.push(("bad_token", failure(stream.prefill(&[999_999]))?));
    transcript.push(("no_token", failure(stream.prefill(&[]))?));

    stream.reset()?;
    transcript.push(("split", generate(&mut stream, &smileys).into()));

    stream.reset()?;
    let tiny = generate_with_room(&mut stream, &smileys, 1, 5);
    transcript.push(("tiny", tiny.into()));

    stream.reset()?;
    let mut cramped = generate_with_room(&mut stream, &smileys, TOKENS_CAP, 2);
    cramped.push(("then", step(stream.next(TOKENS_CAP, TEXT_CAP))));
    transcript.push(("cramped", cramped.into()));

    stream.reset()?;
    stream.prefill(&prompt)?;
    four_steps(&mut stream);
    stream.save_slot("talk.slot")?;
    let mut second = context.open(&usual())?;
    second.restore_slot("talk.slot")?;
    let mut saved = generate(&mut second, &and_then);
    saved.extend([("save", 0.into()), ("restore", 0.into())]);
    transcript.push(("saved", saved.into()));
    drop(second);

    let missing = stream.restore_slot("missing.slot");
    transcript.push(("missing_slot", failure(missing)?));
    Ok(())
}

fn configured_streams(context: &Context, transcript: &mut Object) -> Outcome<()> {
    let sampled = Config {
        temperature: 0.8,
        top_p: 0.9,
        top_k: 40,
        repeat_penalty: 1.2,
        ..usual()
    };
    transcript.push(("sampled", generate_once(context, PROMPT, &sampled)?.into()));

    let grammar = Config {
        gbnf_grammar: Some(r#"root ::= " yes" | " no""#),
        ..usual()
    };
    transcript.push(("grammar", generate_once(context, PROMPT, &grammar)?.into()));

    let keyed = Config {
        slot_id: 3,
        prompt_cache_key: Some("talk"),
        ..usual()
    };
    let first = generate_once(context, PROMPT, &keyed)?;
    let second = generate_once(context, PROMPT, &keyed)?;
    transcript.push(("keyed", Json::List(vec![first.into(), second.into()])));

    let drafting = Config {
        max_tokens: 40,
        draft_min: 1,
        draft_max: 4,
        cache_type_k: Some("q8_0"),
        cache_type_v: Some("q8_0"),
        ..usual()
    };
    let (sender, events) = mpsc::channel();
    context.set_verifier(move |event| {
        let members = vec![
            ("accepted", event.accepted.into()),
            ("rejected_from", event.rejected_from.into()),
            ("rejected_to", event.rejected_to.into()),
            ("corrected", event.corrected.into()),
        ];
        // The receiver is there until the verifier is cleared.
        let _ = sender.send(Json::from(members));
    })?;
    let mut drafted = generate_once(context, LOOP, &drafting)?;
    context.clear_verifier()?;
    drafted.push(("events", events.iter().collect::<Vec<_>>().into()));
    transcript.push(("drafted", drafted.into()));

    let wrong = [
        Config {
            cache_type_k: Some("q3_9"),
            ..usual()
        },
        Config {
            cache_type_v: Some("q3_9"),
            ..usual()
        },
        Config {
            mtp_drafter_path: Some("/no/such/drafter.gguf"),
            ..usual()
        },
        Config {
            gbnf_grammar: Some("root ::= ("),
            ..usual()
        },
    ];
    let refused: Outcome<Vec<_>> = wrong.iter().map(|c| refusal(context.open(c))).collect();
    transcript.push(("failed_open", refused?.into()));
    Ok(())
}

fn selection(context: &Context, transcript: &mut Object) -> Outcome<()> {
    env::set_var("ELIZA_LLM_BACKEND", "no-such-runtime");
    let refused = context.open(&usual()).map_err(|error| Error {
        message: error.message.lines().take(1).collect(),
        ..error
    });
    transcript.push(("hard_select", refusal(refused)?));
    env::set_var("ELIZA_LLM_BACKEND", "LlamaCpp");
    let selected = generate_once(context, PROMPT, &usual())?;
    transcript.push(("selected", selected.into()));
    env::remove_var("ELIZA_LLM_BACKEND");
    Ok(())
}

fn cancelled(context: Context, transcript: &mut Object, cancel_ms: &mut Object) -> Outcome<()> {
    let mut stream = context.open(&Config::default())?;
    let prompt = context.tokenize(PROMPT, false)?;
    let long = context.tokenize(&"word ".repeat(2000), false)?;

    stream.prefill(&context.tokenize(LOOP, false)?)?;
    let (error, milliseconds) = stopped(&mut stream, |stream| loop {
        stream.next(TOKENS_CAP, TEXT_CAP)?;
    })?;
    cancel_ms.push(("next", milliseconds.into()));
    let next = failure(stream.next(TOKENS_CAP, TEXT_CAP))?;
    let prefill = failure(stream.prefill(&prompt))?;
    stream.reset()?;
    stream.prefill(&prompt)?;
    transcript.push((
        "cancel_next",
        Json::from(vec![
            ("code", error.code.into()),
            ("next", next),
            ("prefill", prefill),
            ("reset", 0.into()),
            ("steps", four_steps(&mut stream)),
        ]),
    ));

    stream.reset()?;
    let (error, milliseconds) = stopped(&mut stream, |stream| stream.prefill(&long))?;
    cancel_ms.push(("prefill", milliseconds.into()));
    stream.reset()?;
    stream.prefill(&prompt)?;
    transcript.push((
        "cancel_prefill",
        Json::from(vec![
            ("code", error.code.into()),
            ("message", error.message.into()),
            ("reset", 0.into()),
            ("steps", four_steps(&mut stream)),
        ]),
    ));

    stream.reset()?;
    stream.prefill(&prompt)?;
    drop(context);
    let steps = four_steps(&mut stream);
    transcript.push(("outlived", Json::from(vec![("steps", steps)])));
    Ok(())
}

/// What `call` fails with, since another thread cancels meanwhile, and how many milliseconds after
/// the call of cancel it returned.
fn stopped(
    stream: &mut Stream,
    call: impl FnOnce(&mut Stream) -> eliza::Result<()>,
) -> Outcome<(Error, f64)> {
    let canceller = stream.canceller();
    let cancelling = thread::spawn(move || {
        thread::sleep(CANCEL_AFTER);
        let called_at = Instant::now();
        canceller.cancel();
        called_at
    });
    let outcome = call(stream);
    let returned_at = Instant::now();
    let called_at = cancelling.join().expect("nothing there panics");
    let error = outcome.err().ok_or(NOT_FAILED)?;
    let elapsed = returned_at.duration_since(called_at);
    Ok((error, elapsed.as_secs_f64() * 1000.0))
}

fn usual() -> Config<'static> {
    Config {
        max_tokens: 16,
        ..Config::default()
    }
}

fn generate_once(context: &Context, text: &str, config: &Config) -> Outcome<Object> {
    let tokens = context.tokenize(text, false)?;
    Ok(generate(&mut context.open(config)?, &tokens))
}

fn generate(stream: &mut Stream, tokens: &[i32]) -> Object {
    generate_with_room(stream, tokens, TOKENS_CAP, TEXT_CAP)
}

fn generate_with_room(
    stream: &mut Stream,
    tokens: &[i32],
    tokens_cap: usize,
    text_cap: usize,
) -> Object {
    if let Err(error) = stream.prefill(tokens) {
        return vec![("prefill", described(error))];
    }
    let mut steps = Vec::new();
    let mut more = true;
    while more {
        let next = stream.next(tokens_cap, text_cap);
        more = matches!(&next, Ok(next) if !next.done);
        steps.push(step(next));
    }
    vec![("prefill", 0.into()), ("steps", steps.into())]
}

fn four_steps(stream: &mut Stream) -> Json {
    let steps = (0..4).map(|_| step(stream.next(TOKENS_CAP, TEXT_CAP)));
    Json::List(steps.collect())
}

fn step(next: eliza::Result<Step>) -> Json {
    match next {
        Ok(step) => Json::from(vec![
            ("code", i32::from(step.done).into()),
            ("tokens", step.tokens.into()),
            ("text", step.text.into()),
            ("drafted", step.drafted.into()),
            ("accepted", step.accepted.into()),
        ]),
        Err(error) => described(error),
    }
}

fn described(error: Error) -> Json {
    Json::from(vec![
        ("code", error.code.into()),
        ("message", error.message.into()),
    ])
}

const NOT_FAILED: &str = "a call succeeded that must fail";

fn failure<T>(outcome: eliza::Result<T>) -> Outcome<Json> {
    Ok(described(outcome.err().ok_or(NOT_FAILED)?))
}

fn refusal<T>(outcome: eliza::Result<T>) -> Outcome<Json> {
    let error = outcome.err().ok_or(NOT_FAILED)?;
    Ok(Json::from(vec![
        ("opened", false.into()),
        ("message", error.message.into()),
    ]))
}
