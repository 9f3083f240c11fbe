//! The names in a new project: the project's own, and the kind that its plugin reconciles.

use anyhow::{Context, bail, ensure};

use crate::name::PluginName;

/// The group of a kind that the user did not name. Nobody owns it.
const GROUP: &str = "example.com";

/// The version of a kind that the user did not name.
const VERSION: &str = "v1";

/// Names that are words of one of the languages, or that a generated project uses itself.
const RESERVED_NAMES: &str = "abstract alloc and as assert async await become box break build case catch chan class config-map const \
    continue core crate debugger def default defer del delete do dyn elif else enum except export extends extern \
    fallthrough false final finally fn for from func function gen global go if impl import in interface is \
    k8s-openapi kube lambda let loop macro main match mod move mut new none null package pass pilothouse \
    pilothouse-sdk plugin pub raise reconcile ref return schemars self serde serde-json static std struct super \
    switch test this trait true type";

/// Kinds whose type would hide one that a generated project uses.
const RESERVED_KINDS: &str = "Admission Any Array Box Cache Change Clone Condition Conditions ConfigMap Context Controller Conversion \
    CustomResource Debug Decision Default Deserialize Dict Dynamic Err Error Event Exception False JsonSchema Key \
    List Mapper MockHost None Object Observer Ok Option Outcome Permission Phase Plugin Request Result Self \
    Serialize Some String True TypeMeta Vec Verb Watch";

/// The names in a new project.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Names {
    pub(super) name: PluginName,
    pub(super) group: String,
    pub(super) version: String,
    pub(super) kind: String,
}

impl Names {
    /// Checks the name of a project and of a kind, GROUP/VERSION/KIND. Without one, the kind is the name in CamelCase.
    ///
    /// # Errors
    /// Says what is wrong with a name, and what to use instead.
    pub(super) fn new(name: &str, kind: Option<&str>) -> anyhow::Result<Self> {
        let name = project(name)?;
        let Some(text) = kind else {
            let kind = camel_case(name.as_str());
            check_kind(&kind).with_context(|| format!("cannot call the kind {kind}: choose another with --kind"))?;
            return Ok(Self { name, group: GROUP.to_owned(), version: VERSION.to_owned(), kind });
        };
        let [group, version, kind] = text.split('/').collect::<Vec<_>>()[..] else {
            let suggested = camel_case(name.as_str());
            bail!("{text:?} is not GROUP/VERSION/KIND, such as {GROUP}/{VERSION}/{suggested}");
        };
        let names = || -> anyhow::Result<Self> {
            check_group(group)?;
            check_version(version)?;
            check_kind(kind)?;
            Ok(Self { name: name.clone(), group: group.to_owned(), version: version.to_owned(), kind: kind.to_owned() })
        };
        names().with_context(|| format!("cannot use the kind {text:?}"))
    }

    /// Returns the name as an identifier: `my_site` for `my-site`.
    pub(super) fn identifier(&self) -> String {
        self.name.as_str().replace('-', "_")
    }

    /// Returns the kind in lower case.
    pub(super) fn singular(&self) -> String {
        self.kind.to_ascii_lowercase()
    }

    /// Returns the English plural of the kind in lower case.
    pub(super) fn plural(&self) -> String {
        let singular = self.singular();
        let ends = |ends: &[&str]| ends.iter().any(|end| singular.ends_with(end));
        if ends(&["s", "x", "z", "ch", "sh"]) {
            return singular + "es";
        }
        match singular.strip_suffix('y') {
            Some(stem) if !stem.is_empty() && !stem.ends_with(['a', 'e', 'i', 'o', 'u']) => format!("{stem}ies"),
            _ => singular + "s",
        }
    }
}

/// Checks the name of a project. It is a plugin's, and a package's in every language.
fn project(text: &str) -> anyhow::Result<PluginName> {
    let name = PluginName::new(text).with_context(|| match PluginName::suggested(text) {
        Some(suggested) => format!("cannot call the project {text:?}; {suggested} would do"),
        None => format!("cannot call the project {text:?}"),
    })?;
    let first = text.chars().next().unwrap_or_default();
    ensure!(!first.is_ascii_digit(), "cannot call the project {text:?}: packages may not begin with a digit");
    ensure!(
        !RESERVED_NAMES.split(' ').any(|reserved| reserved == text),
        "cannot call the project {text:?}: that is a word of the language, or of the project's own sources; {text}-operator would do"
    );
    Ok(name)
}

fn check_group(group: &str) -> anyhow::Result<()> {
    ensure!(
        group.contains('.'),
        "groups without a dot are those of Kubernetes, and a new kind needs one of your own: a domain, such as {GROUP}"
    );
    ensure!(
        !["k8s.io", "kubernetes.io"].iter().any(|own| group == *own || group.ends_with(&format!(".{own}"))),
        "groups below k8s.io and kubernetes.io are reserved for Kubernetes"
    );
    ensure!(
        group.len() <= 200 && group.split('.').all(|label| PluginName::new(label).is_ok()),
        "a group is a domain in lower case, such as {GROUP}, of at most 200 characters"
    );
    Ok(())
}

fn check_version(version: &str) -> anyhow::Result<()> {
    let is_label = PluginName::new(version).is_ok() && version.starts_with(|first: char| first.is_ascii_lowercase());
    ensure!(is_label, "a version is a word in lower case that begins with a letter, such as v1 or v1alpha1");
    Ok(())
}

fn check_kind(kind: &str) -> anyhow::Result<()> {
    ensure!(
        kind.starts_with(|first: char| first.is_ascii_uppercase())
            && kind.chars().all(|char| char.is_ascii_alphanumeric())
            && kind.len() <= 60,
        "a kind is a word in CamelCase, such as MySite, of at most 60 letters and digits"
    );
    ensure!(
        !RESERVED_KINDS.split(' ').any(|reserved| reserved == kind),
        "{kind} is a type of the generated sources; another word, such as My{kind}, would do"
    );
    ensure!(!kind.ends_with("List"), "the API server calls lists of a kind so; leave out `List`");
    Ok(())
}

/// `MySite` for `my-site`.
fn camel_case(name: &str) -> String {
    let word = |word: &str| {
        let mut chars = word.chars();
        chars.next().into_iter().map(|first| first.to_ascii_uppercase()).chain(chars).collect::<String>()
    };
    name.split('-').map(word).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(name: &str, kind: Option<&str>) -> String {
        Names::new(name, kind).map_or_else(|error| format!("{error:#}"), |names| panic!("{names:?}"))
    }

    #[test]
    fn the_kind_is_the_name_in_camel_case_unless_it_is_given() -> anyhow::Result<()> {
        let names = Names::new("my-site", None)?;
        assert_eq!((&*names.group, &*names.version, &*names.kind), ("example.com", "v1", "MySite"));
        assert_eq!(
            (names.identifier(), names.singular(), names.plural()),
            ("my_site".into(), "mysite".into(), "mysites".into())
        );
        let names = Names::new("greeter", Some("apps.acme.org/v1beta1/Greeting"))?;
        assert_eq!((&*names.group, &*names.version, &*names.kind), ("apps.acme.org", "v1beta1", "Greeting"));
        Ok(())
    }

    #[test]
    fn plurals_are_english() {
        for (kind, plural) in [
            ("Policy", "policies"),
            ("Gateway", "gateways"),
            ("Ingress", "ingresses"),
            ("Tax", "taxes"),
            ("Patch", "patches"),
            ("Y", "ys"),
            ("Website", "websites"),
        ] {
            let names = Names::new("a", Some(&format!("example.com/v1/{kind}")));
            assert_eq!(names.map(|names| names.plural()).ok().as_deref(), Some(plural));
        }
    }

    #[test]
    fn a_name_that_cannot_be_a_package_is_refused_with_one_that_can() {
        assert!(refused("My_Site", None).contains("my-site would do"));
        assert!(refused("", None).contains("may not be empty"));
        assert!(refused("9lives", None).contains("digit"));
        for reserved in ["match", "serde", "class", "func", "test"] {
            assert!(refused(reserved, None).contains(&format!("{reserved}-operator would do")));
        }
        assert!(refused("config", Some("example.com/v1/ConfigMap")).contains("MyConfigMap"));
        assert!(refused("outcome", None).contains("--kind"));
    }

    #[test]
    fn a_kind_that_cannot_be_defined_is_refused_with_the_reason() {
        for (kind, why) in [
            ("v1/Pod", "is not GROUP/VERSION/KIND, such as example.com/v1/A"),
            ("example.com/v1/a/b", "is not GROUP/VERSION/KIND"),
            ("apps/v1/Deployment", "groups without a dot"),
            ("networking.k8s.io/v1/Ingress", "reserved for Kubernetes"),
            ("Example.com/v1/Site", "a group is a domain in lower case"),
            ("example.com/1/Site", "a version is a word"),
            ("example.com/v1/site", "a kind is a word in CamelCase"),
            ("example.com/v1/My-Site", "a kind is a word in CamelCase"),
            ("example.com/v1/SiteList", "leave out `List`"),
        ] {
            let error = refused("a", Some(kind));
            assert!(error.contains(why) && error.contains(kind), "{error}");
        }
    }
}
