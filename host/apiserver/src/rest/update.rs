//! PUT: replaces an object.

use serde_json::Value;

use super::{
    Answer, Call, Part, check_fields, check_kind, check_name,
    create::{Tracking, insert, place},
    scale,
    write::{Replaced, replace},
};
use crate::{
    body::Decoded,
    object::meta_str,
    resources::Resource,
    schema::Cause,
    status::{Result, Status},
};

/// Replaces an object, or the part of it that the request names, by the body.
pub(crate) async fn update(call: &mut Call<'_>, body: Decoded) -> Result<Answer> {
    if call.part == Part::Scale {
        return scale::update(call, &body.value).await;
    }
    let Decoded { mut value, duplicates } = body;
    check_kind(call, &mut value)?;
    check_fields(call, &mut value, &duplicates)?;
    place(call, &mut value)?;
    check_name(call, &value)?;
    let version = meta_str(&value, "resourceVersion").to_owned();
    loop {
        let Some(current) = call.current() else {
            let given = meta_str(&value, "uid");
            if call.resource.create_on_update && call.part == Part::Object && !given.is_empty() {
                let why = format!("Precondition failed: UID in precondition: {given}, UID in object meta: ");
                return Err(Status::conflict(&call.resource.group_resource(), &call.key.name, &why));
            }
            if call.resource.create_on_update && call.part == Part::Object {
                return insert(call, value, Tracking::Update).await.map_err(|failure| failure.status(call));
            }
            return Err(call.not_found());
        };
        check_precondition(call, &value, &version, &current.value)?;
        match replace(call, &current, value.clone(), Tracking::Update).await? {
            Replaced::Done(answer) => return Ok(answer),
            Replaced::Overtaken if version.is_empty() => {}
            Replaced::Overtaken => return Err(call.modified()),
        }
    }
}

fn check_precondition(call: &Call<'_>, value: &Value, version: &str, current: &Value) -> Result<()> {
    let (given, kept) = (meta_str(value, "uid"), meta_str(current, "uid"));
    if !given.is_empty() && given != kept {
        let why = format!("Precondition failed: UID in precondition: {given}, UID in object meta: {kept}");
        return Err(Status::conflict(&call.resource.group_resource(), &call.key.name, &why));
    }
    if version.is_empty() || version == "0" {
        if call.resource.custom || call.resource.plural == "leases" {
            let cause = Cause::invalid("metadata.resourceVersion", &0.into(), "must be specified for an update");
            let Resource { plural, group, .. } = &**call.resource;
            return Err(Status::invalid_kind(plural, group, &call.key.name, &[cause]));
        }
    } else if version.parse::<u64>().is_err() {
        return Err(Status::unknown(format!("strconv.ParseUint: parsing \"{version}\": invalid syntax")));
    } else if version != meta_str(current, "resourceVersion") {
        return Err(call.modified());
    }
    Ok(())
}

impl Call<'_> {
    /// Returns the 409 for a concurrent write.
    pub(super) fn modified(&self) -> Status {
        Status::modified(&self.resource.group_resource(), &self.key.name)
    }
}
