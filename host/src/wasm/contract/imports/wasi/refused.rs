//! The packages of WASI that are refused: each function is linked, and refused by name when it is called.
//!
//! Toolchains link a whole standard library, which imports files and sockets that the plugin never uses. So it loads. A
//! function fails as the operating system would deny it, if its result has room for that. Otherwise it traps.
//! There are no preopened directories, so a file is never found in the first place.

use wasmtime::{
    Result, StoreContextMut,
    component::{
        Component, Linker, LinkerInstance, Resource, ResourceType, Val,
        types::{ComponentFunc, ComponentItem, Type},
    },
};

use super::{super::host_state::HostState, WasiCall, interface_of, is_refused};

/// A resource of a refused package. One is never made, but for [`NETWORK`].
struct Refused;

/// Names of errors that say that something is denied, in the packages that are refused.
const DENIED: [&str; 3] = ["access-denied", "access", "HTTP-request-denied"];

/// Returns what the libraries need of the network before they open a socket, which is refused.
const NETWORK: &str = "wasi:sockets/instance-network.instance-network";

/// Returns a linker that refuses what the component imports of the refused packages. `None` if it imports nothing of
/// them.
///
/// # Errors
/// If the engine does not accept a definition.
pub(crate) fn refusing(linker: &Linker<HostState>, component: &Component) -> Result<Option<Linker<HostState>>> {
    let engine = linker.engine();
    let ty = component.component_type();
    let refused = |name: &str| interface_of(name).is_some_and(is_refused);
    if !ty.imports(engine).any(|(name, _)| refused(name)) {
        return Ok(None);
    }
    let mut linker = linker.clone();
    // A resource that an interface uses from another one is already defined there.
    let mut seen: Vec<ResourceType> = Vec::new();
    for (name, import) in ty.imports(engine) {
        let ComponentItem::ComponentInstance(instance) = import.ty else { continue };
        let mut own = refused(name).then(|| linker.instance(name)).transpose()?;
        for (export, item) in instance.exports(engine) {
            match item.ty {
                ComponentItem::Resource(resource) if !seen.contains(&resource) => {
                    seen.push(resource);
                    if let Some(own) = &mut own {
                        own.resource(export, ResourceType::host::<Refused>(), |_, _| Ok(()))?;
                    }
                }
                ComponentItem::ComponentFunc(_) => {
                    if let Some(own) = &mut own {
                        refuse(own, interface_of(name).unwrap_or(name), export)?;
                    }
                }
                _ => {}
            }
        }
    }
    Ok(Some(linker))
}

fn refuse(linker: &mut LinkerInstance<'_, HostState>, interface: &str, function: &str) -> Result<()> {
    let name = format!("{interface}.{}", function.rsplit(']').next().unwrap_or(function));
    linker.func_new(function, move |mut store: StoreContextMut<'_, HostState>, ty, _, results| {
        store.data_mut().admit(WasiCall::Refused, 0)?;
        let Some(result) = results.first_mut() else { return Err(refusal(&name)) };
        *result = match name.as_str() {
            "wasi:filesystem/preopens.get-directories" => Val::List(Vec::new()),
            "wasi:filesystem/types.filesystem-error-code" => Val::Option(None),
            NETWORK => Val::Resource(Resource::<Refused>::new_own(0).try_into_resource_any(&mut store)?),
            _ => denied(&ty).ok_or_else(|| refusal(&name))?,
        };
        Ok(())
    })
}

fn refusal(name: &str) -> wasmtime::Error {
    wasmtime::Error::msg(format!("the host refuses {name}: a plugin has no files, sockets and HTTP of WASI"))
}

/// Returns the error that says that access is denied, if the function can return one.
fn denied(ty: &ComponentFunc) -> Option<Val> {
    let Some(Type::Result(result)) = ty.results().next() else { return None };
    let error = match result.err()? {
        Type::Enum(errors) => {
            let name = DENIED.into_iter().find(|denied| errors.names().any(|name| name == *denied))?;
            Val::Enum(name.to_owned())
        }
        Type::Variant(errors) => {
            let is_plain = |denied: &&str| errors.cases().any(|case| case.name == *denied && case.ty.is_none());
            Val::Variant(DENIED.into_iter().find(|denied| is_plain(denied))?.to_owned(), None)
        }
        _ => return None,
    };
    Some(Val::Result(Err(Some(Box::new(error)))))
}
