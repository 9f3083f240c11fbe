//! The host's image, packed from the binary under test.

use std::{
    fs,
    os::unix::fs::{MetadataExt, PermissionsExt},
    path::Path,
};

use anyhow::{Context, Result, ensure};
use pilothouse_e2e::{
    Image, Plugin, Pod, Scene, cluster::Kind, image::may_unshare, install::server_and_ca, suite::NotHere,
};
use serde_json::json;

use crate::pod::{Account, write};

pub(crate) async fn an_image_has_what_the_host_needs_and_is_the_same_each_time(scene: Scene) -> Result<()> {
    let image = Image::packed(&scene, "first")?;
    let again = Image::packed(&scene, "again")?;
    ensure!(fs::read(image.archive())? == fs::read(again.archive())?, "a second image differs from the first");

    let is_library = |path: &String| path.starts_with("lib/") && path.contains(".so");
    let (libraries, others): (Vec<_>, Vec<_>) = image.paths()?.into_iter().partition(is_library);
    let wanted = [
        "etc/group",
        "etc/nsswitch.conf",
        "etc/passwd",
        "etc/ssl/certs/ca-certificates.crt",
        "lib64",
        "tmp",
        "usr/local/bin/pilothouse",
    ];
    ensure!(others == wanted, "the image has {others:?}");
    ensure!(libraries.iter().any(|path| path.starts_with("lib/libc.")), "the image has the libraries {libraries:?}");
    for path in libraries.iter().chain(&others).filter(|path| *path != "tmp") {
        let mode = fs::metadata(image.files().join(path))?.permissions().mode();
        ensure!(mode & 0o6022 == 0, "{path} has the mode {mode:o}");
    }

    let config = &image.config()["config"];
    ensure!(
        config["User"] == "65532:65532" && config["Entrypoint"] == json!(["/usr/local/bin/pilothouse"]),
        "{config}"
    );
    let version = env!("CARGO_PKG_VERSION");
    let labels = json!({
        "org.opencontainers.image.title": "pilothouse",
        "org.opencontainers.image.version": version,
        "org.opencontainers.image.licenses": "Apache-2.0",
    });
    ensure!(config["Labels"] == labels, "{config}");

    // People with docker get the same.
    let docker = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy/Dockerfile"))?;
    for (name, value) in labels.as_object().into_iter().flatten() {
        let line = format!("LABEL {name}={}", value.as_str().unwrap_or_default());
        ensure!(docker.contains(&line), "deploy/Dockerfile lacks `{line}`");
    }
    ensure!(
        docker.contains("\nUSER 65532:65532\n") && docker.contains("\nENTRYPOINT [\"/usr/local/bin/pilothouse\"]\n")
    );
    Ok(())
}

pub(crate) async fn a_host_works_in_the_files_of_its_image_alone(mut scene: Scene) -> Result<()> {
    if !may_unshare() {
        return Err(NotHere("no namespaces of one's own (unshare -rm)").into());
    }
    let image = Image::packed(&scene, "image")?;
    let version = image.run(&["--version"])?;
    ensure!(version.starts_with(concat!("pilothouse ", env!("CARGO_PKG_VERSION"))), "--version prints {version}");

    scene.run_in(&image);
    scene.with(&[Plugin::myapple()?])?;
    let mut host = match scene.cluster.kind() {
        Kind::Embedded => scene.starting_host()?,
        Kind::Real => {
            let account = Account::create(&scene).await?;
            let folder = scene.folder().join("serviceaccount");
            fs::create_dir(&folder).context("cannot create the service account's folder")?;
            let (server, ca) = server_and_ca(&scene.cluster.kubeconfig())?;
            write(&folder, "ca.crt", &ca)?;
            write(&folder, "namespace", scene.namespace.as_bytes())?;
            write(&folder, "token", account.token(&scene, "token").await?.as_bytes())?;
            scene.host_in(Pod { service_account: folder, server })?
        }
    };
    host.ready().await?;
    scene.apple("gala").create(3).await?.settles().await?;

    // It is confined as in a container.
    let process = Path::new("/proc").join(host.id().to_string());
    let status = fs::read_to_string(process.join("status")).context("cannot read the process's status")?;
    ensure!(status.contains("\nCapEff:\t0000000000000000\n"), "the host has capabilities: {status}");
    let root = fs::metadata(process.join("root")).context("cannot read the process's root")?;
    ensure!(root.ino() == fs::metadata(image.files())?.ino(), "the host does not run in the image");
    let mounts = fs::read_to_string(process.join("mountinfo")).context("cannot read the process's mounts")?;
    let root = mounts.lines().find(|line| line.split(' ').nth(4) == Some("/")).context("it has no root")?;
    ensure!(
        root.split(' ').nth(5).is_some_and(|options| options.starts_with("ro")),
        "its root is not read-only: {root}"
    );
    host.terminate().await
}
