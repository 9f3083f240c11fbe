//! Where a new project finds the SDK, until the SDKs are published.

use std::{
    fmt,
    path::{Path, PathBuf},
};

use anyhow::{Context, bail, ensure};

use crate::cli::language::Language;

/// The checkout that this program was built in.
const BUILT_IN: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/..");

/// Where the SDK is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Sdk {
    /// In a checkout of the repository.
    Checkout {
        /// The absolute path of the SDK's folder.
        path: PathBuf,
        /// `true` if the user did not name it.
        default: bool,
    },
    /// In a git repository.
    Git(String),
}

/// `/src/pilothouse/plugin-sdk, in the checkout that this program was built in`.
impl fmt::Display for Sdk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Checkout { path, default: false } => write!(f, "{}", path.display()),
            Self::Checkout { path, default: true } => {
                write!(f, "{}, in the checkout that this program was built in", path.display())
            }
            Self::Git(url) => write!(f, "the git repository {url}"),
        }
    }
}

impl Sdk {
    /// Finds the SDK that the user named, or else that of the checkout that this program was built in.
    ///
    /// # Errors
    /// There is no SDK for the language.
    pub(super) fn find(named: Option<&str>, language: Language) -> anyhow::Result<Self> {
        match named {
            Some(url) if is_url(url) => Ok(Self::Git(url.to_owned())),
            Some(path) => {
                let path = checkout(Path::new(path), language).with_context(|| format!("cannot use --sdk {path}"))?;
                Ok(Self::Checkout { path, default: false })
            }
            None => {
                let path = checkout(Path::new(BUILT_IN), language).context(
                    "the SDKs are not published yet: name a checkout of Pilothouse with --sdk PATH, or its git repository with --sdk URL",
                )?;
                Ok(Self::Checkout { path, default: true })
            }
        }
    }

    /// Returns the reference to the SDK that the language's package manager reads.
    ///
    /// # Errors
    /// The package manager takes no such reference.
    pub(super) fn reference(&self, language: Language) -> anyhow::Result<String> {
        Ok(match (self, language) {
            (Self::Checkout { path, .. }, Language::Rust) => format!("{{ path = {} }}", quoted(path)?),
            (Self::Checkout { path, .. }, Language::Python) => {
                format!("pilothouse @ file://{}", text(path)?.replace('%', "%25").replace(' ', "%20"))
            }
            (Self::Checkout { path, .. }, Language::JavaScript | Language::TypeScript) => {
                format!("file:{}", text(path)?)
            }
            (Self::Checkout { path, .. }, Language::Go) => text(path)?.to_owned(),
            (Self::Git(url), Language::Rust) => format!("{{ git = {} }}", quoted(Path::new(url))?),
            (Self::Git(url), Language::Python) => format!("pilothouse @ git+{url}#subdirectory={}", folder(language)),
            (Self::Git(url), Language::JavaScript | Language::TypeScript | Language::Go) => bail!(
                "a {language} project cannot take a folder of the git repository {url}: clone it, and name the clone with --sdk PATH"
            ),
        })
    }
}

/// Returns the folder of a language's SDK in the repository.
fn folder(language: Language) -> &'static str {
    match language {
        Language::Rust => "plugin-sdk",
        Language::Python => "sdks/python",
        Language::JavaScript | Language::TypeScript => "sdks/javascript",
        Language::Go => "sdks/go",
    }
}

/// Returns the absolute path of the SDK in a checkout, or of the folder itself if that is the SDK.
fn checkout(path: &Path, language: Language) -> anyhow::Result<PathBuf> {
    let path = path.canonicalize().with_context(|| format!("cannot read {}", path.display()))?;
    let found = [path.join(folder(language)), path.clone()].into_iter().find(|path| {
        let project = Language::of_project(path);
        project == Some(language)
            || (language == Language::JavaScript && project == Some(Language::TypeScript))
            || (language == Language::TypeScript && project == Some(Language::JavaScript))
    });
    let is_repository = path.join("plugin-sdk").is_dir() && path.join("wit").is_dir();
    found.filter(|found| is_repository || *found == path).with_context(|| {
        format!("there is no SDK for {language} in {}: it would be the folder {}", path.display(), folder(language))
    })
}

/// `true` for `https://host/repository`, `file:///repository` and `git@host:repository`.
fn is_url(text: &str) -> bool {
    text.contains("://") || (text.starts_with("git@") && text.contains(':'))
}

/// Returns the path as text that needs no quotes in any of the files.
fn text(path: &Path) -> anyhow::Result<&str> {
    let text = path.to_str().with_context(|| format!("{} is not Unicode", path.display()))?;
    let refused = |char: char| matches!(char, '"' | '\'' | '\\' | '`' | '{' | '}') || char.is_control();
    ensure!(!text.contains(refused), "the path {text:?} has characters that need quotes: move the checkout");
    Ok(text)
}

fn quoted(path: &Path) -> anyhow::Result<String> {
    Ok(format!("\"{}\"", text(path)?))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_checkout_or_a_git_repository_is_referred_to_as_the_language_wants_it() -> anyhow::Result<()> {
        let dir = tempfile::tempdir()?;
        let root = dir.path().canonicalize()?.join("a b");
        for folder in ["wit", "plugin-sdk", "sdks/python"] {
            fs::create_dir_all(root.join(folder))?;
        }
        fs::write(root.join("plugin-sdk/Cargo.toml"), "")?;
        fs::write(root.join("sdks/python/pyproject.toml"), "")?;
        let named = root.display().to_string();
        let reference = |sdk: &str, language| Sdk::find(Some(sdk), language)?.reference(language);
        assert_eq!(reference(&named, Language::Rust)?, format!("{{ path = \"{named}/plugin-sdk\" }}"));
        assert_eq!(
            reference(&format!("{named}/plugin-sdk"), Language::Rust)?,
            format!("{{ path = \"{named}/plugin-sdk\" }}")
        );
        let escaped = named.replace(' ', "%20");
        assert_eq!(reference(&named, Language::Python)?, format!("pilothouse @ file://{escaped}/sdks/python"));
        let url = "https://example.com/pilothouse";
        assert_eq!(reference(url, Language::Rust)?, format!("{{ git = \"{url}\" }}"));
        assert_eq!(reference(url, Language::Python)?, format!("pilothouse @ git+{url}#subdirectory=sdks/python"));
        let refused = |sdk: &str, language| format!("{:#}", reference(sdk, language).expect_err("it is refused"));
        assert!(refused(url, Language::Go).contains("clone it"));
        assert!(refused(&named, Language::Go).contains("it would be the folder sdks/go"));
        assert!(refused("/nowhere", Language::Rust).contains("cannot use --sdk /nowhere"));
        Ok(())
    }

    #[test]
    fn the_default_is_the_checkout_that_the_program_was_built_in() -> anyhow::Result<()> {
        let sdk = Sdk::find(None, Language::Rust)?;
        assert!(sdk.to_string().ends_with("plugin-sdk, in the checkout that this program was built in"), "{sdk}");
        Ok(())
    }
}
