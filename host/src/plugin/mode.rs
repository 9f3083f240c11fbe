//! Who decides what plugins may do.

/// Who decides what a plugin may do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Mode {
    /// The administrator, in `<name>.yaml`. Without that file nothing is granted.
    #[default]
    Granted,
    /// The plugin: everything that it asks for is granted. `<name>.yaml` may give config and limits. For development.
    Dev,
}
