//! Requests in OpenAI's format.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::Deserialize;
use serde_json::{Value, json};
use tiny_http::{Header, Method, Request, Response};

use crate::engine::{Completion, Engine, Prompt, Wish};

/// The largest body.
const BODY_MAX: u64 = 16 << 20;

/// The body of a request for a completion. Fields that are not here are refused rather than ignored.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Asked {
    prompt: Text,
    #[serde(default = "sixteen")]
    max_tokens: usize,
    #[serde(default)]
    temperature: f32,
    #[serde(default)]
    seed: u32,
    #[serde(default, rename = "model")]
    _model: Option<String>,
    #[serde(default, rename = "user")]
    _user: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Text {
    Text(String),
    Tokens(Vec<i32>),
}

/// OpenAI's default.
fn sixteen() -> usize {
    16
}

/// Answers one request.
pub(crate) fn serve(engine: &mut Engine<'_>, mut request: Request) {
    let (status, body) = answer(engine, &mut request);
    let json = Header::from_bytes("Content-Type", "application/json").expect("a header");
    let response = Response::from_string(format!("{body}\n")).with_status_code(status);
    if let Err(why) = request.respond(response.with_header(json)) {
        eprintln!("adit-llama: a client did not take its answer: {why}");
    }
}

fn answer(engine: &mut Engine<'_>, request: &mut Request) -> (u16, Value) {
    match (request.method(), request.url()) {
        (Method::Post, "/v1/completions") => {}
        (Method::Get, "/v1/models") => {
            let model = json!({ "id": engine.name(), "object": "model", "owned_by": "local" });
            return (200, json!({ "object": "list", "data": [model] }));
        }
        _ => return refused(404, "there are POST /v1/completions and GET /v1/models"),
    }
    let asked: Asked =
        match serde_json::from_reader(std::io::Read::take(request.as_reader(), BODY_MAX)) {
            Ok(asked) => asked,
            Err(why) => return refused(400, why),
        };
    let prompt = match asked.prompt {
        Text::Text(text) => Prompt::Text(text),
        Text::Tokens(tokens) => Prompt::Tokens(tokens),
    };
    let Asked { max_tokens, temperature, seed, .. } = asked;
    if !(0.0..=2.0).contains(&temperature) {
        return refused(400, format!("temperature {temperature}: give 0 to 2"));
    }
    match engine.complete(&Wish { prompt, max_tokens, temperature, seed }) {
        Ok(completion) => (200, told(engine.name(), &completion)),
        Err(error) => refused(400, format!("{error:#}")),
    }
}

fn refused(status: u16, why: impl ToString) -> (u16, Value) {
    let kind = if status < 500 { "invalid_request_error" } else { "server_error" };
    (status, json!({ "error": { "message": why.to_string(), "type": kind } }))
}

fn told(model: &str, completion: &Completion) -> Value {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let ms = |time: Duration| time.as_secs_f64() * 1e3;
    let (prompt, new) = (completion.prompt_tokens, completion.tokens.len());
    json!({
        "id": format!("cmpl-{}", now.as_nanos()),
        "object": "text_completion",
        "created": now.as_secs(),
        "model": model,
        "choices": [{
            "index": 0,
            "text": completion.text,
            "tokens": completion.tokens,
            "finish_reason": if completion.is_ended { "stop" } else { "length" },
        }],
        "usage": {
            "prompt_tokens": prompt,
            "completion_tokens": new,
            "total_tokens": prompt + new,
            "prompt_tokens_details": { "cached_tokens": completion.cached_tokens },
        },
        "timings": {
            "restore_ms": ms(completion.times.restore),
            "prefill_ms": ms(completion.times.prefill),
            "first_token_ms": ms(completion.times.first_token),
            "total_ms": ms(completion.times.total),
        },
    })
}
