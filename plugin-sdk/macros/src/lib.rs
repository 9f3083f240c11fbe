//! Macros of pilothouse-sdk.
