//! Tables for `kubectl get`: columns and cells for common kinds, and NAME and AGE for the rest.

use serde_json::{Value, json};

use crate::{
    jsonpath,
    object::{array, meta_str},
    request::Params,
    resources::{Column, Resource},
    status::{Result, Status},
};

/// What a row has besides its cells.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Include {
    Nothing,
    Metadata,
    Object,
}

impl Include {
    pub(crate) fn parse(params: &Params) -> Result<Self> {
        match params.get("includeObject") {
            "" | "Metadata" => Ok(Include::Metadata),
            "None" => Ok(Include::Nothing),
            "Object" => Ok(Include::Object),
            other => Err(Status::bad_request(format!("unrecognized includeObject value: \"{other}\""))),
        }
    }
}

/// A column of a built-in kind: name, OpenAPI type, `true` for wide output only, and its cell.
type Builtin = (&'static str, &'static str, bool, fn(&Value) -> Value);

/// Returns a Table of objects in the version of `resource`.
pub(crate) fn table(resource: &Resource, objects: &[&Value], include: Include, meta: &Value, columns: bool) -> Value {
    let rows: Vec<Value> = objects
        .iter()
        .map(|object| {
            let mut row = json!({"cells": cells(resource, object)});
            row["object"] = match include {
                Include::Nothing => return row,
                Include::Object => (*object).clone(),
                Include::Metadata => json!({
                    "kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": object["metadata"],
                }),
            };
            row
        })
        .collect();
    json!({
        "kind": "Table", "apiVersion": "meta.k8s.io/v1", "metadata": meta,
        "columnDefinitions": if columns { definitions(resource) } else { Value::Null },
        "rows": rows,
    })
}

fn definitions(resource: &Resource) -> Value {
    let definition = |name: &str, kind: &str, format: &str, description: &str, priority: i64| json!({"name": name, "type": kind, "format": format, "description": description, "priority": priority});
    let name = definition("Name", "string", "name", "Name must be unique within a namespace.", 0);
    let mut all = vec![name];
    if resource.custom && !resource.columns.is_empty() {
        let columns = resource.columns.iter();
        all.extend(columns.map(|c| definition(&c.name, &c.kind, &c.format, &c.description, c.priority)));
    } else {
        let columns = builtin(resource).iter();
        all.extend(columns.map(|(name, kind, wide, _)| definition(name, kind, "", "", i64::from(*wide))));
    }
    all.into()
}

fn cells(resource: &Resource, object: &Value) -> Vec<Value> {
    let mut cells = vec![json!(meta_str(object, "name"))];
    if resource.custom && !resource.columns.is_empty() {
        cells.extend(resource.columns.iter().map(|column| custom_cell(column, object)));
    } else {
        cells.extend(builtin(resource).iter().map(|(_, _, _, cell)| cell(object)));
    }
    cells
}

/// Returns the cell of a printer column, or null if the value is missing or of another type.
fn custom_cell(column: &Column, object: &Value) -> Value {
    let Some(value) = jsonpath::first(object, &column.path) else { return Value::Null };
    match column.kind.as_str() {
        "integer" => value.as_i64().map_or(Value::Null, Value::from),
        "number" if value.is_number() => value.clone(),
        "boolean" if value.is_boolean() => value.clone(),
        "string" => match value {
            Value::Null | Value::String(_) => value.clone(),
            other => other.to_string().into(),
        },
        "date" => value.as_str().map_or(Value::Null, |time| age_of(time).into()),
        _ => Value::Null,
    }
}

fn builtin(resource: &Resource) -> &'static [Builtin] {
    const AGE: Builtin = ("Age", "string", false, age);
    const CONTAINERS: Builtin = ("Containers", "string", true, |o| containers(o, "name"));
    const IMAGES: Builtin = ("Images", "string", true, |o| containers(o, "image"));
    const SELECTOR: Builtin =
        ("Selector", "string", true, |o| crate::selector::label_selector_text(&o["spec"]["selector"]).into());
    if resource.custom {
        return &[("Age", "date", false, age)];
    }
    match (resource.group.as_str(), resource.plural.as_str()) {
        ("", "configmaps") => &[("Data", "string", false, data), AGE],
        ("", "secrets") => &[("Type", "string", false, |o| o["type"].clone()), ("Data", "string", false, data), AGE],
        ("", "namespaces") => &[("Status", "string", false, |o| o["status"]["phase"].clone()), AGE],
        ("", "serviceaccounts") => &[("Secrets", "integer", false, |o| array(&o["secrets"]).len().into()), AGE],
        ("admissionregistration.k8s.io", _) => {
            &[("Webhooks", "integer", false, |o| array(&o["webhooks"]).len().into()), AGE]
        }
        ("", "pods") => &[
            ("Ready", "string", false, pod_ready),
            ("Status", "string", false, pod_status),
            ("Restarts", "integer", false, |o| {
                let statuses = array(&o["status"]["containerStatuses"]).iter();
                statuses.filter_map(|status| status["restartCount"].as_i64()).sum::<i64>().into()
            }),
            AGE,
            ("IP", "string", true, |o| or_none(&o["status"]["podIP"])),
            ("Node", "string", true, |o| or_none(&o["spec"]["nodeName"])),
        ],
        ("", "services") => &[
            ("Type", "string", false, |o| o["spec"]["type"].clone()),
            ("Cluster-IP", "string", false, |o| or_none(&o["spec"]["clusterIP"])),
            ("External-IP", "string", false, |o| or_none(&o["spec"]["externalName"])),
            ("Port(s)", "string", false, ports),
            AGE,
            ("Selector", "string", true, |o| crate::selector::label_selector_text(&o["spec"]["selector"]).into()),
        ],
        ("", "nodes") => &[
            ("Status", "string", false, |o| {
                let conditions = array(&o["status"]["conditions"]);
                let ready = conditions.iter().find(|condition| condition["type"] == "Ready");
                match ready.map(|condition| condition["status"] == "True") {
                    Some(true) => "Ready".into(),
                    Some(false) => "NotReady".into(),
                    None => "Unknown".into(),
                }
            }),
            AGE,
            ("Version", "string", false, |o| o["status"]["nodeInfo"]["kubeletVersion"].clone()),
        ],
        ("", "persistentvolumeclaims") => &[
            ("Status", "string", false, |o| o["status"]["phase"].clone()),
            ("Volume", "string", false, |o| o["spec"]["volumeName"].clone()),
            AGE,
        ],
        ("", "events") => &[
            ("Last Seen", "string", false, |o| event_age(o, "lastTimestamp", "eventTime")),
            ("Type", "string", false, |o| o["type"].clone()),
            ("Reason", "string", false, |o| o["reason"].clone()),
            ("Object", "string", false, |o| event_object(&o["involvedObject"])),
            ("Message", "string", false, |o| o["message"].clone()),
            ("Count", "integer", true, |o| o["count"].clone()),
        ],
        ("events.k8s.io", "events") => &[
            ("Last Seen", "string", false, |o| event_age(o, "deprecatedLastTimestamp", "eventTime")),
            ("Type", "string", false, |o| o["type"].clone()),
            ("Reason", "string", false, |o| o["reason"].clone()),
            ("Object", "string", false, |o| event_object(&o["regarding"])),
            ("Message", "string", false, |o| o["note"].clone()),
        ],
        ("apps", "deployments") => &[
            ("Ready", "string", false, |o| ready(o, "readyReplicas")),
            ("Up-to-date", "string", false, |o| count(&o["status"]["updatedReplicas"])),
            ("Available", "string", false, |o| count(&o["status"]["availableReplicas"])),
            AGE,
            CONTAINERS,
            IMAGES,
            SELECTOR,
        ],
        ("apps", "replicasets") | ("", "replicationcontrollers") => &[
            ("Desired", "integer", false, |o| count(&o["spec"]["replicas"])),
            ("Current", "integer", false, |o| count(&o["status"]["replicas"])),
            ("Ready", "integer", false, |o| count(&o["status"]["readyReplicas"])),
            AGE,
            CONTAINERS,
            IMAGES,
            SELECTOR,
        ],
        ("apps", "statefulsets") => {
            &[("Ready", "string", false, |o| ready(o, "readyReplicas")), AGE, CONTAINERS, IMAGES]
        }
        ("apps", "daemonsets") => &[
            ("Desired", "integer", false, |o| count(&o["status"]["desiredNumberScheduled"])),
            ("Current", "integer", false, |o| count(&o["status"]["currentNumberScheduled"])),
            ("Ready", "integer", false, |o| count(&o["status"]["numberReady"])),
            ("Up-to-date", "integer", false, |o| count(&o["status"]["updatedNumberScheduled"])),
            ("Available", "integer", false, |o| count(&o["status"]["numberAvailable"])),
            AGE,
            CONTAINERS,
            IMAGES,
            SELECTOR,
        ],
        ("batch", "jobs") => &[
            ("Status", "string", false, job_status),
            ("Completions", "string", false, |o| {
                let wanted = o["spec"]["completions"].as_i64().unwrap_or(1);
                format!("{}/{wanted}", o["status"]["succeeded"].as_i64().unwrap_or(0)).into()
            }),
            AGE,
            CONTAINERS,
            IMAGES,
        ],
        ("batch", "cronjobs") => &[
            ("Schedule", "string", false, |o| o["spec"]["schedule"].clone()),
            ("Suspend", "boolean", false, |o| o["spec"]["suspend"].as_bool().unwrap_or(false).into()),
            ("Active", "integer", false, |o| array(&o["status"]["active"]).len().into()),
            AGE,
        ],
        ("coordination.k8s.io", "leases") => {
            &[("Holder", "string", false, |o| o["spec"]["holderIdentity"].clone()), AGE]
        }
        ("rbac.authorization.k8s.io", "roles" | "clusterroles")
        | ("apiextensions.k8s.io", "customresourcedefinitions") => {
            &[("Created At", "date", false, |o| o["metadata"]["creationTimestamp"].clone())]
        }
        ("rbac.authorization.k8s.io", _) => &[
            ("Role", "string", false, |o| {
                let reference = &o["roleRef"];
                let text = |field: &str| reference[field].as_str().unwrap_or_default();
                format!("{}/{}", text("kind"), text("name")).into()
            }),
            AGE,
        ],
        ("networking.k8s.io", "ingresses") => &[
            ("Class", "string", false, |o| or_none(&o["spec"]["ingressClassName"])),
            ("Hosts", "string", false, |o| {
                let hosts = array(&o["spec"]["rules"]).iter().filter_map(|rule| rule["host"].as_str());
                join(hosts, "*")
            }),
            AGE,
        ],
        ("policy", "poddisruptionbudgets") => &[
            ("Min Available", "string", false, |o| or_na(&o["spec"]["minAvailable"])),
            ("Max Unavailable", "string", false, |o| or_na(&o["spec"]["maxUnavailable"])),
            ("Allowed Disruptions", "integer", false, |o| count(&o["status"]["disruptionsAllowed"])),
            AGE,
        ],
        _ => &[AGE],
    }
}

fn age(object: &Value) -> Value {
    match object["metadata"]["creationTimestamp"].as_str() {
        Some(time) => age_of(time).into(),
        None => "<unknown>".into(),
    }
}

/// Returns the age of a time, as kubectl writes durations.
fn age_of(time: &str) -> String {
    match time.parse::<jiff::Timestamp>() {
        Ok(time) => human_duration(jiff::Timestamp::now().duration_since(time).as_secs()),
        Err(_) => "<invalid>".to_owned(),
    }
}

/// Formats a duration with one or two units: `119s`, `2m30s`, `15m`, `3h10m`, `30h`, `2d5h`, `300d`, `2y30d`, `9y`.
fn human_duration(seconds: i64) -> String {
    const MINUTE: i64 = 60;
    const HOUR: i64 = 60 * MINUTE;
    const DAY: i64 = 24 * HOUR;
    const YEAR: i64 = 365 * DAY;
    let two = |big: i64, big_unit: &str, small: i64, small_unit: &str| match seconds % big / small {
        0 => format!("{}{big_unit}", seconds / big),
        rest => format!("{}{big_unit}{rest}{small_unit}", seconds / big),
    };
    match seconds {
        ..=-2 => "<invalid>".to_owned(),
        -1 => "0s".to_owned(),
        s if s < 2 * MINUTE => format!("{s}s"),
        s if s < 10 * MINUTE => two(MINUTE, "m", 1, "s"),
        s if s < 3 * HOUR => format!("{}m", s / MINUTE),
        s if s < 8 * HOUR => two(HOUR, "h", MINUTE, "m"),
        s if s < 2 * DAY => format!("{}h", s / HOUR),
        s if s < 8 * DAY => two(DAY, "d", HOUR, "h"),
        s if s < 2 * YEAR => format!("{}d", s / DAY),
        s if s < 8 * YEAR => two(YEAR, "y", DAY, "d"),
        s => format!("{}y", s / YEAR),
    }
}

fn data(object: &Value) -> Value {
    let members = |field: &str| object[field].as_object().map_or(0, serde_json::Map::len);
    (members("data") + members("binaryData")).into()
}

fn count(value: &Value) -> Value {
    value.as_i64().unwrap_or(0).into()
}

fn or_none(value: &Value) -> Value {
    if value.is_null() { "<none>".into() } else { value.clone() }
}

fn or_na(value: &Value) -> Value {
    if value.is_null() { "N/A".into() } else { value.clone() }
}

fn join<'a>(parts: impl Iterator<Item = &'a str>, empty: &str) -> Value {
    let text = parts.collect::<Vec<_>>().join(",");
    if text.is_empty() { empty.into() } else { text.into() }
}

fn ready(object: &Value, field: &str) -> Value {
    let number = |value: &Value| value.as_i64().unwrap_or(0);
    format!("{}/{}", number(&object["status"][field]), number(&object["spec"]["replicas"])).into()
}

fn containers(object: &Value, field: &str) -> Value {
    let containers = array(&object["spec"]["template"]["spec"]["containers"]);
    join(containers.iter().filter_map(|container| container[field].as_str()), "")
}

fn pod_ready(pod: &Value) -> Value {
    let statuses = array(&pod["status"]["containerStatuses"]);
    let ready = statuses.iter().filter(|status| status["ready"] == true).count();
    format!("{ready}/{}", array(&pod["spec"]["containers"]).len()).into()
}

fn pod_status(pod: &Value) -> Value {
    if pod["metadata"]["deletionTimestamp"].is_string() {
        return "Terminating".into();
    }
    let reason = &pod["status"]["reason"];
    if reason.is_string() { reason.clone() } else { pod["status"]["phase"].clone() }
}

fn job_status(job: &Value) -> Value {
    let conditions = array(&job["status"]["conditions"]);
    let holds = |kind: &str| conditions.iter().any(|c| c["type"] == kind && c["status"] == "True");
    let found = ["Complete", "Failed", "Suspended"].into_iter().find(|kind| holds(kind));
    found.unwrap_or("Running").into()
}

fn ports(service: &Value) -> Value {
    let ports: Vec<String> = array(&service["spec"]["ports"])
        .iter()
        .map(|port| {
            let protocol = port["protocol"].as_str().unwrap_or("TCP");
            match port["nodePort"].as_i64() {
                Some(node) if node != 0 => format!("{}:{node}/{protocol}", port["port"]),
                _ => format!("{}/{protocol}", port["port"]),
            }
        })
        .collect();
    join(ports.iter().map(String::as_str), "<none>")
}

fn event_age(event: &Value, last: &str, otherwise: &str) -> Value {
    let time = event[last].as_str().or(event[otherwise].as_str());
    time.or(event["metadata"]["creationTimestamp"].as_str()).map_or("<unknown>".into(), |time| age_of(time).into())
}

fn event_object(reference: &Value) -> Value {
    let text = |field: &str| reference[field].as_str().unwrap_or_default();
    format!("{}/{}", text("kind").to_lowercase(), text("name")).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ages_read_as_kubectl_writes_them() {
        let written: Vec<String> = [
            -5,
            -1,
            0,
            119,
            120,
            150,
            599,
            600,
            10_799,
            10_800,
            11_460,
            28_800,
            172_799,
            172_800,
            190_800,
            691_200,
            63_071_999,
            63_072_000,
            65_664_000,
            252_288_000,
        ]
        .into_iter()
        .map(human_duration)
        .collect();
        let wanted = [
            "<invalid>",
            "0s",
            "0s",
            "119s",
            "2m",
            "2m30s",
            "9m59s",
            "10m",
            "179m",
            "3h",
            "3h11m",
            "8h",
            "47h",
            "2d",
            "2d5h",
            "8d",
            "729d",
            "2y",
            "2y30d",
            "8y",
        ];
        assert_eq!(written, wanted);
    }
}
