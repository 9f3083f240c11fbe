//! Reads request bodies within a bound, and decodes JSON, YAML or protobuf to JSON values.

use std::fmt;

use bytes::Bytes;
use http::{HeaderMap, header};
use http_body_util::{BodyExt, LengthLimitError, Limited};
use serde::de::{DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};

use crate::{
    protobuf,
    request::text_header,
    status::{Result, Status},
    yaml,
};

/// The largest body: kube-apiserver's limit of 3 MiB.
pub(crate) const LIMIT: usize = 3 << 20;

/// A decoded body.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Decoded {
    pub(crate) value: Value,
    /// Paths of duplicate members. The last one counts.
    pub(crate) duplicates: Vec<String>,
}

/// Reads a whole body.
pub(crate) async fn read<B>(body: B) -> Result<Bytes>
where
    B: http_body::Body<Data = Bytes>,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    match Limited::new(body, LIMIT).collect().await {
        Ok(collected) => Ok(collected.to_bytes()),
        Err(error) if error.is::<LengthLimitError>() => Err(Status::too_large(format_args!("limit is {LIMIT}"))),
        Err(error) => Err(Status::bad_request(format!("unable to read the body: {error}"))),
    }
}

/// Decodes an object of `kind` according to its Content-Type. The default is JSON.
pub(crate) fn decode(headers: &HeaderMap, body: &[u8], kind: &str) -> Result<Decoded> {
    let refused = |format: &str, why: &str| {
        let why = format!("couldn't get version/kind; {format} parse error: {why}");
        Status::bad_request(format!("the object provided is unrecognized (must be of type {kind}): {why}"))
    };
    let content_type = text_header(headers, header::CONTENT_TYPE);
    match content_type.split(';').next().unwrap_or_default().trim() {
        "" | "application/json" | "*/*" => json(body).map_err(|why| refused("json", &why)),
        "application/yaml" => yaml(body).map_err(|why| refused("yaml", &why)),
        protobuf::MEDIA_TYPE => protobuf::decode(body).map(|value| Decoded { value, duplicates: Vec::new() }),
        other => Err(Status::unsupported_body(other)),
    }
}

/// Decodes JSON.
///
/// # Errors
/// The JSON is invalid. The text follows Go's decoder where possible.
pub(crate) fn json(body: &[u8]) -> std::result::Result<Decoded, String> {
    let mut duplicates = Vec::new();
    let mut text = serde_json::Deserializer::from_slice(body);
    let seed = Seed { path: "", duplicates: &mut duplicates };
    let value = seed.deserialize(&mut text).and_then(|value| text.end().map(|()| value));
    match value {
        Ok(value) => Ok(Decoded { value, duplicates }),
        Err(error) if error.is_eof() => Err("unexpected end of JSON input".to_owned()),
        Err(error) if error.to_string().starts_with("recursion limit exceeded") => {
            let text = std::str::from_utf8(body).map_err(|error| error.to_string())?;
            yaml::deep_json(text).map(Decoded::from).map_err(|error| error.to_string())
        }
        Err(error) => Err(error.to_string()),
    }
}

/// Decodes YAML. Apply patches are declared as YAML and usually are JSON.
///
/// # Errors
/// The YAML is invalid. The text has the position.
pub(crate) fn yaml(body: &[u8]) -> std::result::Result<Decoded, String> {
    let text = std::str::from_utf8(body).map_err(|error| error.to_string())?;
    if yaml::is_same_as_json(text)
        && let Ok(decoded) = json(body)
    {
        return Ok(decoded);
    }
    yaml::first(text).map(Decoded::from).map_err(|error| format!("yaml: {error}"))
}

impl From<yaml::Document> for Decoded {
    fn from(yaml::Document { value, duplicates }: yaml::Document) -> Self {
        Self { value, duplicates }
    }
}

/// Builds a value and records duplicate members.
struct Seed<'a> {
    path: &'a str,
    duplicates: &'a mut Vec<String>,
}

impl<'de> DeserializeSeed<'de> for Seed<'_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> std::result::Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Seed<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_bool<E>(self, value: bool) -> std::result::Result<Value, E> {
        Ok(value.into())
    }

    fn visit_i64<E>(self, value: i64) -> std::result::Result<Value, E> {
        Ok(value.into())
    }

    fn visit_u64<E>(self, value: u64) -> std::result::Result<Value, E> {
        Ok(value.into())
    }

    fn visit_f64<E: serde::de::Error>(self, value: f64) -> std::result::Result<Value, E> {
        serde_json::Number::from_f64(value).map(Value::Number).ok_or_else(|| E::custom("number out of range"))
    }

    fn visit_str<E>(self, value: &str) -> std::result::Result<Value, E> {
        Ok(value.into())
    }

    fn visit_string<E>(self, value: String) -> std::result::Result<Value, E> {
        Ok(value.into())
    }

    fn visit_unit<E>(self) -> std::result::Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> std::result::Result<Value, A::Error> {
        let mut values = Vec::new();
        loop {
            let path = format!("{}[{}]", self.path, values.len());
            let seed = Seed { path: &path, duplicates: &mut *self.duplicates };
            match seq.next_element_seed(seed)? {
                Some(value) => values.push(value),
                None => return Ok(values.into()),
            }
        }
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> std::result::Result<Value, A::Error> {
        let mut members = Map::new();
        while let Some(key) = map.next_key::<String>()? {
            let path = if self.path.is_empty() { key.clone() } else { format!("{}.{key}", self.path) };
            let value = map.next_value_seed(Seed { path: &path, duplicates: &mut *self.duplicates })?;
            if members.insert(key, value).is_some() {
                self.duplicates.push(path);
            }
        }
        Ok(members.into())
    }
}
