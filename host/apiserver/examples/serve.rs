//! Serves an empty cluster on a free port, and writes its kubeconfig to the given file.
//!
//! ```sh
//! cargo run -p pilothouse-apiserver --example serve -- kubeconfig.yaml
//! KUBECONFIG=kubeconfig.yaml kubectl get namespaces
//! ```

use std::{io, sync::Arc};

use pilothouse_apiserver::{Server, serve};

#[tokio::main]
async fn main() -> io::Result<()> {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
    let config = Server::kubeconfig(listener.local_addr()?);
    match std::env::args().nth(1) {
        Some(file) => std::fs::write(file, config)?,
        None => print!("{config}"),
    }
    let stop = async {
        if let Err(error) = tokio::signal::ctrl_c().await {
            eprintln!("cannot wait for an interrupt: {error}");
        }
    };
    serve(listener, stop, Arc::new(Server::new())).await
}
