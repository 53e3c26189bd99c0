//! JSON-RPC 2.0, one object per line, for both sides; without sockets.

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::names;
use lasthop_runtime::fault::{Fault, Kind};

/// Longest request line, in bytes; reasonable requests have a tenth of that.
pub const REQUEST_BYTES_MAX: usize = 64 * 1024;

/// A client's request.
#[derive(Debug, PartialEq)]
pub struct Call {
    /// `None` for a notification, which gets no answer.
    pub id: Option<Value>,
    pub method: String,
    pub params: Value,
}

#[derive(Deserialize)]
struct Envelope {
    jsonrpc: String,
    method: String,
    #[serde(default)]
    params: Value,
}

/// Parses a line. An error has the request's id, if it is known, for the answer.
pub fn read_call(line: &[u8]) -> Result<Call, (Value, Fault)> {
    let value: Value = serde_json::from_slice(line)
        .map_err(|error| (Value::Null, Fault::new(Kind::Parse, format!("this line is not JSON: {error}"))))?;
    let bad = |id: Value, why: &str| Err((id, Fault::new(Kind::Request, why)));
    let Value::Object(object) = &value else {
        return bad(Value::Null, "a request is one JSON object on a line; batches are not served");
    };
    let id = object.get("id").cloned();
    let known_id = id.clone().filter(is_id);
    if id.is_some() && known_id.is_none() {
        return bad(Value::Null, "\"id\" must be a string, a number or null");
    }
    match Envelope::deserialize(&value) {
        Ok(call) if call.jsonrpc == "2.0" => Ok(Call { id, method: call.method, params: call.params }),
        Ok(_) => bad(known_id.unwrap_or_default(), "\"jsonrpc\" must be \"2.0\""),
        Err(error) => bad(known_id.unwrap_or_default(), &format!("this is no JSON-RPC request: {error}")),
    }
}

fn is_id(value: &Value) -> bool {
    matches!(value, Value::String(_) | Value::Number(_) | Value::Null)
}

/// Parses the parameters as `T`; missing `params` count as an empty object.
pub fn params<T: DeserializeOwned>(params: Value) -> Result<T, Fault> {
    let params = match params {
        Value::Null => json!({}),
        Value::Object(_) => params,
        _ => return Err(Fault::params("\"params\" must be an object, with the parameters by name")),
    };
    serde_json::from_value(params).map_err(|error| {
        let words = error.to_string();
        Fault::params(names::unknown_key(&words, "_").unwrap_or(words))
    })
}

/// An answer as a line.
pub fn write_answer(id: &Value, result: &Result<Value, Fault>) -> Vec<u8> {
    // A table may be long, so it is not copied.
    #[derive(Serialize)]
    struct Done<'a> {
        jsonrpc: &'static str,
        id: &'a Value,
        result: &'a Value,
    }
    let answer = match result {
        Ok(result) => serde_json::to_vec(&Done { jsonrpc: "2.0", id, result }),
        Err(fault) => serde_json::to_vec(
            &json!({"jsonrpc": "2.0", "id": id, "error": {"code": fault.kind.code(), "message": fault.message}}),
        ),
    };
    // This cannot fail: keys of both are strings, and the output is memory.
    let mut line = answer.unwrap_or_default();
    line.push(b'\n');
    line
}

/// A request as a line.
pub fn write_call(method: &str, params: &impl Serialize) -> String {
    format!("{}\n", json!({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}))
}

/// The result in an answer, or the error's message.
pub fn read_answer<T: DeserializeOwned>(line: &str) -> Result<T, Fault> {
    #[derive(Deserialize)]
    struct Answer<T> {
        result: Option<T>,
        error: Option<Refusal>,
    }
    #[derive(Deserialize)]
    struct Refusal {
        code: i64,
        message: String,
    }
    let odd = |error: serde_json::Error| Fault::internal("understand the switch's answer", error);
    match serde_json::from_str(line).map_err(odd)? {
        Answer { error: Some(Refusal { code, message }), .. } => {
            Err(Fault::new(Kind::of_code(code).unwrap_or(Kind::Refused), message))
        }
        Answer { result: Some(result), .. } => Ok(result),
        Answer { result: None, .. } => serde_json::from_value(Value::Null).map_err(odd),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn refused(line: &str) -> (Value, i64) {
        let (id, fault) = read_call(line.as_bytes()).expect_err(line);
        (id, fault.kind.code())
    }

    #[test]
    fn a_request_is_read() {
        let call = read_call(br#"{"jsonrpc":"2.0","id":"x","method":"stats","params":{"name":"a"}}"#);
        let expected = Call { id: Some(json!("x")), method: "stats".into(), params: json!({"name": "a"}) };
        assert_eq!(call, Ok(expected));
    }

    #[test]
    fn without_an_id_it_is_a_notification() {
        let call = read_call(br#"{"jsonrpc":"2.0","method":"stats"}"#).expect("a notification");
        assert_eq!((call.id, call.params), (None, Value::Null));
        let call = read_call(br#"{"jsonrpc":"2.0","id":null,"method":"stats"}"#).expect("an odd request");
        assert_eq!(call.id, Some(Value::Null));
    }

    #[test]
    fn what_is_no_request_gets_the_right_code_and_id() {
        assert_eq!(refused("{"), (Value::Null, -32700));
        assert_eq!(refused("[]"), (Value::Null, -32600));
        assert_eq!(refused("{\"id\":3}"), (json!(3), -32600));
        assert_eq!(refused(r#"{"jsonrpc":"1.0","id":3,"method":"stats"}"#), (json!(3), -32600));
        assert_eq!(refused(r#"{"jsonrpc":"2.0","id":[],"method":"stats"}"#), (Value::Null, -32600));
    }

    #[test]
    fn parameters_go_by_their_names() {
        assert_eq!(params::<serde_json::Map<String, Value>>(Value::Null), Ok(serde_json::Map::new()));
        let fault = params::<Vec<u8>>(json!([1])).expect_err("no object");
        assert!(fault.message.contains("must be an object"), "{fault}");
    }

    #[test]
    fn an_answer_survives_being_written_and_read() {
        let line = String::from_utf8(write_answer(&json!(1), &Ok(json!([1, 2])))).expect("text");
        assert_eq!(read_answer::<Vec<u8>>(&line), Ok(vec![1, 2]));
        let line = String::from_utf8(write_answer(&json!(1), &Err(Fault::params("no")))).expect("text");
        assert!(line.contains("-32602"));
        assert_eq!(read_answer::<Vec<u8>>(&line), Err(Fault::params("no")));
    }

    proptest! {
        #[test]
        fn any_line_is_read_or_refused(line in proptest::collection::vec(any::<u8>(), 0..80)) {
            let _ = read_call(&line);
        }

        #[test]
        fn a_written_call_is_read_back(method in "[a-z.]{1,10}", word in ".{0,20}") {
            let line = write_call(&method, &json!({"word": word}));
            prop_assert_eq!(line.matches('\n').count(), 1);
            let call = read_call(line.trim_end().as_bytes()).expect("our own request");
            prop_assert_eq!(call.method, method);
            prop_assert_eq!(call.params, json!({"word": word}));
        }
    }
}
