//! One call for each of several objects, and the report of it.

use adit_kvstore::store::Answer;
use adit_kvstore::{Key, PendingAnswer};
use serde_json::json;

use super::any_store::AnyStore;
use super::store_arg::StoreArgs;
use crate::failure::Result;
use crate::output;

/// Calls the store, which returns for each key whether its object exists; reports those that do as `done`, and the
/// others as missing.
///
/// # Errors
/// When an object does not exist, and as [`StoreArgs::on`].
pub(crate) fn each(
    store: &StoreArgs,
    keys: &[Key],
    call: impl FnOnce(&AnyStore) -> Result<Vec<bool>>,
    done: &str,
    json: bool,
) -> Result<()> {
    let (mut reached, mut missing) = (Vec::new(), Vec::new());
    for (key, exists) in keys.iter().zip(store.on(call)?) {
        let list = if exists { &mut reached } else { &mut missing };
        list.push(key.to_string());
    }
    output::report(json, || json!({ done: reached, "missing": missing }), String::new)?;
    if missing.is_empty() { Ok(()) } else { Err(store.no_objects(&missing)) }
}

/// Waits for the answers to requests that were made.
///
/// # Errors
/// The first failure.
pub(crate) fn answers<M, P: PendingAnswer<Output = Answer<bool, M>>>(
    requests: impl IntoIterator<Item = P>,
) -> Result<Vec<bool>> {
    requests.into_iter().map(|request| Ok(request.wait()?)).collect()
}
