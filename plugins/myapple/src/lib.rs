//! Example plugin: keeps a ConfigMap for each apple that a MyApple asks for.
