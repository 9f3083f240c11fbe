//! Templates of Pods: whether two are equal, and the hash that tells the ReplicaSets of a Deployment apart.

use k8s_openapi::{api::core::v1::PodTemplateSpec, apimachinery::pkg::apis::meta::v1::LabelSelector};

/// The label of ReplicaSets and Pods with the hash of their template.
pub(super) const HASH: &str = "pod-template-hash";

/// Letters of a hash: no vowels, so that there are no words, and no digits that look like letters.
const LETTERS: &[u8; 27] = b"bcdfghjklmnpqrstvwxz2456789";

/// Returns `true` if two templates differ in nothing but the hash.
pub(super) fn is_equal(a: &PodTemplateSpec, b: &PodTemplateSpec) -> bool {
    let plain = |template: &PodTemplateSpec| {
        let mut template = template.clone();
        if let Some(metadata) = &mut template.metadata {
            for map in [&mut metadata.labels, &mut metadata.annotations] {
                map.as_mut().into_iter().for_each(|map| drop(map.remove(HASH)));
                *map = map.take().filter(|map| !map.is_empty());
            }
        }
        template.metadata = template.metadata.filter(|metadata| *metadata != Default::default());
        template
    };
    plain(a) == plain(b)
}

/// Returns the hash of a template, and of how many hashes before it were taken.
///
/// It has the form of Kubernetes' own. The value differs, because Kubernetes hashes the memory of its Go types. That
/// does no harm, as ReplicaSets are found by their templates.
pub(super) fn hash(template: &PodTemplateSpec, collisions: Option<i32>) -> String {
    let text = serde_json::to_vec(template).unwrap_or_default();
    let collisions = collisions.into_iter().flat_map(i32::to_le_bytes);
    // FNV-1a.
    let hash = text
        .into_iter()
        .chain(collisions)
        .fold(0x811c_9dc5_u32, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193));
    hash.to_string().bytes().map(|digit| char::from(LETTERS[usize::from(digit) % LETTERS.len()])).collect()
}

/// Returns the template with the label.
pub(super) fn labelled(mut template: PodTemplateSpec, hash: &str) -> PodTemplateSpec {
    let labels = template.metadata.get_or_insert_default().labels.get_or_insert_default();
    labels.insert(HASH.to_owned(), hash.to_owned());
    template
}

/// Returns the selector that matches only Pods with the label.
pub(super) fn selecting(mut selector: LabelSelector, hash: &str) -> LabelSelector {
    selector.match_labels.get_or_insert_default().insert(HASH.to_owned(), hash.to_owned());
    selector
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::PodTemplateSpec;
    use serde_json::{Value, from_value, json};

    use super::{hash, is_equal, labelled};

    #[expect(clippy::needless_pass_by_value, reason = "objects are written in place")]
    fn template(metadata: Value, image: &str) -> PodTemplateSpec {
        let spec = json!({"containers": [{"name": "web", "image": image}]});
        from_value(json!({"metadata": metadata, "spec": spec})).expect("a template")
    }

    #[test]
    fn only_the_hash_may_differ() {
        let plain = template(json!({"labels": {"app": "web"}}), "web:1");
        for (other, expected) in [
            (plain.clone(), true),
            (labelled(plain.clone(), "abc"), true),
            (template(json!({"labels": {"app": "web"}, "annotations": {}}), "web:1"), true),
            (template(json!({"labels": {"app": "web"}}), "web:2"), false),
            (template(json!({"labels": {"app": "web", "tier": "front"}}), "web:1"), false),
            (template(json!({"labels": {"app": "web"}, "annotations": {"restartedAt": "now"}}), "web:1"), false),
        ] {
            assert_eq!(is_equal(&plain, &other), expected, "{other:?}");
        }
        assert!(is_equal(&template(json!(null), "web:1"), &labelled(template(json!(null), "web:1"), "abc")));
    }

    #[test]
    fn a_hash_differs_for_another_template_and_after_a_collision() {
        let (one, two) = (template(json!({}), "web:1"), template(json!({}), "web:2"));
        let all = [hash(&one, None), hash(&two, None), hash(&one, Some(0)), hash(&one, Some(1))];
        for (place, hash) in all.iter().enumerate() {
            assert!(!all[..place].contains(hash), "{all:?}");
            assert!(!hash.is_empty() && hash.len() <= 10 && !hash.contains(['a', 'e', 'i', 'o', 'u']), "{hash}");
        }
        assert_eq!(hash(&one, None), all[0]);
    }
}
