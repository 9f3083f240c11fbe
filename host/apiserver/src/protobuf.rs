//! Decodes Kubernetes' protobuf bodies, which `kubectl create` and `kubectl auth can-i` send.
//!
//! ```text
//! "k8s\0" ─ runtime.Unknown { 1: TypeMeta { 1: apiVersion, 2: kind }, 2: the object's own message }
//! ```
//!
//! A table of fields (`protobuf/fields.rs`) decodes the object to JSON. Kinds and fields that are not in the tables are
//! rejected, never dropped.

mod fields;

use base64::{Engine as _, engine::general_purpose::STANDARD as BASE64};
use serde_json::{Map, Value};

use crate::status::{Result, Status};

/// The Content-Type of such bodies.
pub(crate) const MEDIA_TYPE: &str = "application/vnd.kubernetes.protobuf";

const MAGIC: &[u8] = b"k8s\0";
/// Upper bound for nesting. Deeper than any message of the tables.
const MAX_DEPTH: usize = 16;

/// The encoding of a field, and its JSON type.
#[derive(Debug, Clone, Copy)]
enum Type {
    Text,
    Texts,
    /// A boolean that is no pointer in Go. It is always written, and `false` means absent.
    Flag,
    /// A boolean that is a pointer in Go. It is written only if set, and `false` is a value.
    FlagPointer,
    Number,
    NumberPointer,
    Bytes,
    Time,
    IntOrString,
    /// `resource.Quantity`
    Quantity,
    Message(&'static [Field]),
    Messages(&'static [Field]),
    /// A message whose fields are inlined into the object.
    Inline(&'static [Field]),
    /// A map from strings.
    Map(&'static Type),
}

/// Number, JSON name, type.
type Field = (u64, &'static str, Type);

/// A field of a message on the wire.
enum Wire<'a> {
    Number(u64),
    Bytes(&'a [u8]),
}

/// Decodes a body.
pub(crate) fn decode(body: &[u8]) -> Result<Value> {
    let refuse = |why: String| Status::bad_request(format!("cannot decode the protobuf body: {why}"));
    let message = body.strip_prefix(MAGIC).ok_or_else(|| refuse("it does not begin with k8s\\0".to_owned()))?;
    let (mut api_version, mut kind, mut raw) = (String::new(), String::new(), &[][..]);
    let mut reader = Reader(message);
    while let Some((number, wire)) = reader.next().map_err(refuse)? {
        match (number, wire) {
            (1, Wire::Bytes(bytes)) => {
                let meta = decode_message(bytes, fields::TYPE_META, 0).map_err(refuse)?;
                let text = |field: &str| meta[field].as_str().unwrap_or_default().to_owned();
                (api_version, kind) = (text("apiVersion"), text("kind"));
            }
            (2, Wire::Bytes(bytes)) => raw = bytes,
            _ => {}
        }
    }
    if api_version.is_empty() || kind.is_empty() {
        return Err(refuse("it does not say its kind".to_owned()));
    }
    let Some(fields) = fields::of(&api_version, &kind) else {
        return Err(Status::unsupported_body(&format!("{MEDIA_TYPE} of {api_version} {kind}")));
    };
    let mut object = decode_message(raw, fields, 0).map_err(refuse)?;
    object["apiVersion"] = api_version.into();
    object["kind"] = kind.into();
    Ok(object)
}

fn decode_message(bytes: &[u8], fields: &[Field], depth: usize) -> std::result::Result<Value, String> {
    if depth > MAX_DEPTH {
        return Err("it is too deep".to_owned());
    }
    let mut object = Map::new();
    let mut reader = Reader(bytes);
    while let Some((number, wire)) = reader.next()? {
        let Some((_, name, kind)) = fields.iter().find(|(known, ..)| *known == number) else {
            match wire {
                // Go writes empty fields too.
                Wire::Number(0) | Wire::Bytes(b"") => continue,
                _ => return Err(format!("field {number} is not known here; send JSON")),
            }
        };
        if let (Wire::Bytes(bytes), Type::Inline(fields)) = (&wire, kind) {
            if let Value::Object(inner) = decode_message(bytes, fields, depth + 1)? {
                object.extend(inner);
            }
            continue;
        }
        if let Some(value) = decode_field(&wire, *kind, object.remove(*name), depth)? {
            object.insert((*name).to_owned(), value);
        }
    }
    Ok(Value::Object(object))
}

/// Decodes a field, given its earlier value in the message. Returns `None` if it is absent.
fn decode_field(
    wire: &Wire<'_>,
    kind: Type,
    before: Option<Value>,
    depth: usize,
) -> std::result::Result<Option<Value>, String> {
    let list = |value: Value| {
        let mut list = match before.clone() {
            Some(Value::Array(list)) => list,
            _ => Vec::new(),
        };
        list.push(value);
        Some(Value::Array(list))
    };
    Ok(match (wire, kind) {
        (Wire::Bytes(bytes), Type::Text) => Some(text(bytes)?).filter(|text| !text.is_empty()).map(Value::from),
        (Wire::Bytes(bytes), Type::Texts) => list(text(bytes)?.into()),
        (Wire::Bytes(bytes), Type::Bytes) => Some(BASE64.encode(bytes).into()),
        (Wire::Bytes(bytes), Type::Message(fields)) => Some(decode_message(bytes, fields, depth + 1)?),
        (Wire::Bytes(bytes), Type::Messages(fields)) => list(decode_message(bytes, fields, depth + 1)?),
        (Wire::Bytes(bytes), Type::Quantity) => {
            Some(decode_message(bytes, fields::QUANTITY, depth + 1)?["string"].take())
        }
        (Wire::Bytes(bytes), Type::IntOrString) => {
            let mut either = decode_message(bytes, fields::INT_OR_STRING, depth + 1)?;
            let number = either["type"].is_null();
            Some(either[if number { "intVal" } else { "strVal" }].take()).map(|value| match value {
                Value::Null if number => 0.into(),
                value => value,
            })
        }
        (Wire::Bytes(bytes), Type::Time) => {
            let time = decode_message(bytes, fields::TIME, depth + 1)?;
            let time = time["seconds"].as_i64().and_then(|seconds| jiff::Timestamp::from_second(seconds).ok());
            time.map(|time| time.strftime("%Y-%m-%dT%H:%M:%SZ").to_string().into())
        }
        (Wire::Bytes(bytes), Type::Map(value)) => {
            let mut map = match before {
                Some(Value::Object(map)) => map,
                _ => Map::new(),
            };
            let entry: [Field; 2] = [(1, "key", Type::Text), (2, "value", *value)];
            let mut entry = decode_message(bytes, &entry, depth + 1)?;
            let key = entry["key"].as_str().unwrap_or_default().to_owned();
            let value = match entry["value"].take() {
                Value::Null => "".into(),
                value => value,
            };
            map.insert(key, value);
            Some(map.into())
        }
        (Wire::Number(number), Type::Flag) => (*number != 0).then_some(true.into()),
        (Wire::Number(number), Type::FlagPointer) => Some((*number != 0).into()),
        (Wire::Number(number), Type::Number) => (*number != 0).then(|| number.cast_signed().into()),
        (Wire::Number(number), Type::NumberPointer) => Some(number.cast_signed().into()),
        _ => return Err("a field has another type than its kind says".to_owned()),
    })
}

fn text(bytes: &[u8]) -> std::result::Result<&str, String> {
    std::str::from_utf8(bytes).map_err(|error| error.to_string())
}

/// Iterates over the fields of a message.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn next(&mut self) -> std::result::Result<Option<(u64, Wire<'a>)>, String> {
        if self.0.is_empty() {
            return Ok(None);
        }
        let tag = self.varint()?;
        let wire = match tag & 7 {
            0 => Wire::Number(self.varint()?),
            2 => {
                let length = usize::try_from(self.varint()?).unwrap_or(usize::MAX);
                let (bytes, rest) = self.0.split_at_checked(length).ok_or("it ends within a field")?;
                self.0 = rest;
                Wire::Bytes(bytes)
            }
            other => return Err(format!("wire type {other} is not used by Kubernetes")),
        };
        Ok(Some((tag >> 3, wire)))
    }

    fn varint(&mut self) -> std::result::Result<u64, String> {
        let mut value = 0u64;
        for shift in (0..64).step_by(7) {
            let (byte, rest) = self.0.split_first().ok_or("it ends within a number")?;
            self.0 = rest;
            value |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err("a number is too long".to_owned())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed test should panic")]

    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    /// A length-delimited field.
    fn bytes(number: u8, content: &[u8]) -> Vec<u8> {
        let mut field = vec![number << 3 | 2, u8::try_from(content.len()).unwrap()];
        field.extend_from_slice(content);
        field
    }

    fn envelope(api_version: &str, kind: &str, object: &[u8]) -> Vec<u8> {
        let meta = [bytes(1, api_version.as_bytes()), bytes(2, kind.as_bytes())].concat();
        [MAGIC.to_vec(), bytes(1, &meta), bytes(2, object)].concat()
    }

    #[test]
    fn config_map_is_decoded() {
        // kubectl writes empty fields of metadata and a creation time of zero.
        let metadata = [bytes(1, b"foo"), bytes(2, b""), vec![0x38, 0], bytes(8, b"")].concat();
        let data = [bytes(1, b"a"), bytes(2, b"b")].concat();
        let body = envelope("v1", "ConfigMap", &[bytes(1, &metadata), bytes(2, &data)].concat());
        assert_eq!(
            decode(&body).unwrap(),
            json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "foo"}, "data": {"a": "b"}})
        );
    }

    #[test]
    fn inlined_messages_stand_in_the_object_itself() {
        let rule = [bytes(1, b"foo.com"), bytes(2, &bytes(1, &bytes(1, &bytes(1, b"/"))))].concat();
        let body = envelope("networking.k8s.io/v1", "Ingress", &bytes(2, &bytes(3, &rule)));
        let wanted = json!({"rules": [{"host": "foo.com", "http": {"paths": [{"path": "/"}]}}]});
        assert_eq!(decode(&body).unwrap()["spec"], wanted);
    }

    #[test]
    fn what_the_tables_do_not_have_is_refused() {
        let body = envelope("v1", "ConfigMap", &bytes(15, b"x"));
        assert_eq!(
            decode(&body).unwrap_err().message,
            "cannot decode the protobuf body: field 15 is not known here; send JSON"
        );
        let body = envelope("v1", "Node", b"");
        assert_eq!(decode(&body).unwrap_err().code, http::StatusCode::UNSUPPORTED_MEDIA_TYPE);
    }

    proptest! {
        #[test]
        fn no_bytes_make_it_panic(content in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = decode(&content);
            let _ = decode(&[MAGIC, &content].concat());
            let content = &content[..content.len().min(127)];
            let _ = decode(&envelope("apps/v1", "Deployment", content));
        }
    }
}
