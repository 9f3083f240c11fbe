//! The macros of `pilothouse_sdk`, which re-exports and documents them.

#![allow(missing_docs, reason = "pilothouse_sdk documents them")]

use proc_macro::TokenStream;
use quote::quote;
use syn::{
    Data, DeriveInput, Fields, ItemFn, LitStr, Token,
    parse::{Parse, ParseStream},
    parse_macro_input,
    spanned::Spanned,
};

#[proc_macro_attribute]
pub fn plugin(arguments: TokenStream, item: TokenStream) -> TokenStream {
    let function = parse_macro_input!(item as ItemFn);
    let arguments = arguments.to_string();
    if !matches!(arguments.as_str(), "" | "own_allocator") {
        let message = "the only argument of #[plugin] is `own_allocator`";
        return syn::Error::new(function.sig.span(), message).into_compile_error().into();
    }
    let allocator = arguments.is_empty();
    if function.sig.inputs.len() > 1 || !function.sig.generics.params.is_empty() || function.sig.asyncness.is_some() {
        let message = "a plugin is a function `fn() -> Plugin` or `fn(C) -> Result<Plugin, Error>`";
        return syn::Error::new(function.sig.span(), message).into_compile_error().into();
    }
    let name = &function.sig.ident;
    quote! {
        #function
        ::pilothouse_sdk::export_plugin!(#name, allocator: #allocator);
    }
    .into()
}

#[proc_macro_derive(Object, attributes(object))]
pub fn object(item: TokenStream) -> TokenStream {
    let input = parse_macro_input!(item as DeriveInput);
    derive_object(&input).unwrap_or_else(syn::Error::into_compile_error).into()
}

/// Parses `api_version = "..", kind = ".."`, in any order.
struct Names {
    api_version: LitStr,
    kind: LitStr,
}

impl Parse for Names {
    fn parse(input: ParseStream<'_>) -> syn::Result<Self> {
        let (mut api_version, mut kind) = (None, None);
        while !input.is_empty() {
            let name: syn::Ident = input.parse()?;
            input.parse::<Token![=]>()?;
            let value: LitStr = input.parse()?;
            match name.to_string().as_str() {
                "api_version" => api_version = Some(value),
                "kind" => kind = Some(value),
                _ => return Err(syn::Error::new(name.span(), "expected `api_version` or `kind`")),
            }
            if !input.is_empty() {
                input.parse::<Token![,]>()?;
            }
        }
        match (api_version, kind) {
            (Some(api_version), Some(kind)) => Ok(Self { api_version, kind }),
            _ => Err(input.error("expected `api_version = \"..\", kind = \"..\"`")),
        }
    }
}

fn derive_object(input: &DeriveInput) -> syn::Result<proc_macro2::TokenStream> {
    let attribute = input.attrs.iter().find(|attribute| attribute.path().is_ident("object"));
    let missing = || syn::Error::new(input.ident.span(), "add #[object(api_version = \"..\", kind = \"..\")]");
    let Names { api_version, kind } = attribute.ok_or_else(missing)?.parse_args()?;
    let has_metadata = match &input.data {
        Data::Struct(data) => match &data.fields {
            Fields::Named(fields) => {
                fields.named.iter().any(|field| field.ident.as_ref().is_some_and(|name| name == "metadata"))
            }
            _ => false,
        },
        _ => false,
    };
    if !has_metadata {
        let message = "expected a struct with a field `metadata: ObjectMeta`";
        return Err(syn::Error::new(input.ident.span(), message));
    }
    let name = &input.ident;
    let (impl_generics, type_generics, where_clause) = input.generics.split_for_impl();
    Ok(quote! {
        impl #impl_generics ::pilothouse_sdk::Object for #name #type_generics #where_clause {
            fn type_meta() -> ::pilothouse_sdk::TypeMeta {
                ::pilothouse_sdk::TypeMeta::new(#api_version, #kind)
            }

            fn metadata(
                &self,
            ) -> &::pilothouse_sdk::k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta {
                &self.metadata
            }

            fn metadata_mut(
                &mut self,
            ) -> &mut ::pilothouse_sdk::k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta {
                &mut self.metadata
            }

            fn to_json(&self) -> ::pilothouse_sdk::entry::JsonResult {
                ::pilothouse_sdk::entry::with_type_meta(#api_version, #kind, self)
            }
        }
    })
}
