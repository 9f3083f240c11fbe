//! Image references, and the registries that a policy allows.

/// The registry of images without one.
const DEFAULT: &str = "docker.io";

/// The registries of a policy: lines such as `registry.example.com`, `ghcr.io/acme` or `*.gcr.io`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Allowed(Vec<String>);

impl Allowed {
    /// Reads one entry a line. What follows `#` is a comment.
    pub fn parse(text: &str) -> Self {
        let entries = text.lines().map(|line| line.split('#').next().unwrap_or_default().trim().trim_end_matches('/'));
        Self(entries.filter(|entry| !entry.is_empty()).map(str::to_lowercase).collect())
    }

    /// Returns `true` if an entry allows the image: the same registry, and the same first segments of the path.
    pub fn allows(&self, image: &str) -> bool {
        let repository = repository(image).to_lowercase();
        self.0.iter().any(|entry| match entry.strip_prefix("*.") {
            Some(entry) => {
                let (host, _) = repository.split_once('/').unwrap_or((&repository, ""));
                // Every domain below the entry's, so the labels are dropped one by one.
                let below = host.match_indices('.').filter_map(|(dot, _)| repository.get(dot + 1..));
                below.into_iter().any(|rest| is_within(rest, entry))
            }
            None => is_within(&repository, entry),
        })
    }
}

impl std::fmt::Display for Allowed {
    /// The first entries, because a message has little room.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        const SHOWN: usize = 8;
        let shown: Vec<&str> = self.0.iter().take(SHOWN).map(String::as_str).collect();
        match self.0.len().saturating_sub(SHOWN) {
            _ if shown.is_empty() => f.write_str("none"),
            0 => f.write_str(&shown.join(", ")),
            more => write!(f, "{} and {more} more", shown.join(", ")),
        }
    }
}

/// Returns `true` if `repository` is `entry`, or lies below it.
fn is_within(repository: &str, entry: &str) -> bool {
    repository.strip_prefix(entry).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// Returns the registry and the path of an image, without tag and digest, as container runtimes complete them.
fn repository(image: &str) -> String {
    let name = image.split('@').next().unwrap_or_default();
    let name = match name.rsplit_once(':') {
        Some((name, tag)) if !tag.contains('/') => name,
        _ => name,
    };
    match name.split_once('/') {
        Some(("index.docker.io", path)) => format!("{DEFAULT}/{path}"),
        Some((DEFAULT, path)) if !path.contains('/') => format!("{DEFAULT}/library/{path}"),
        Some((host, _)) if host.contains(['.', ':']) || host == "localhost" => name.to_owned(),
        Some(_) => format!("{DEFAULT}/{name}"),
        None => format!("{DEFAULT}/library/{name}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_image_is_completed_as_runtimes_do() {
        for (image, expected) in [
            ("nginx", "docker.io/library/nginx"),
            ("nginx:1.29", "docker.io/library/nginx"),
            ("acme/web", "docker.io/acme/web"),
            ("docker.io/nginx", "docker.io/library/nginx"),
            ("index.docker.io/acme/web", "docker.io/acme/web"),
            ("localhost/web", "localhost/web"),
            ("registry:5000/web:1", "registry:5000/web"),
            ("ghcr.io/acme/web:1@sha256:0123", "ghcr.io/acme/web"),
        ] {
            assert_eq!(repository(image), expected, "{image}");
        }
    }

    #[test]
    fn an_entry_allows_whole_segments_only() {
        let allowed = Allowed::parse("# ours\nregistry.example.com/\n\nghcr.io/acme  # theirs\n*.gcr.io/team\n");
        for image in ["registry.example.com/web", "Registry.Example.com/web", "ghcr.io/acme/web:1", "eu.gcr.io/team/a"]
        {
            assert!(allowed.allows(image), "{image}");
        }
        for image in [
            "registry.example.com.evil.org/web",
            "registry.example.com:5000/web",
            "ghcr.io/acme-evil/web",
            "gcr.io/team/a",
            "eu.gcr.io/other/a",
            "evilgcr.io/team/a",
            "evil.org/eu.gcr.io/team/a",
            "nginx",
        ] {
            assert!(!allowed.allows(image), "{image}");
        }
        assert!(Allowed::parse("docker.io").allows("nginx"));
        assert!(Allowed::parse("docker.io/library").allows("nginx"));
        assert!(!Allowed::parse("docker.io/library").allows("acme/nginx"));
        assert_eq!(allowed.to_string(), "registry.example.com, ghcr.io/acme, *.gcr.io/team");
        assert_eq!(Allowed::parse("#").to_string(), "none");
    }
}
