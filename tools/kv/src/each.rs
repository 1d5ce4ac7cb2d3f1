//! One action on each of several objects, and the report of it.

use adit_kvstore::Key;
use adit_kvstore::shard::{Action, Outcome};
use serde_json::json;

use super::store_arg::StoreArgs;
use crate::failure::Result;
use crate::output;

/// Calls the store for each key; reports as `done` those whose outcome is `good`, and the others as missing.
///
/// # Errors
/// When an object does not exist, and as [`StoreArgs::with`].
pub(crate) fn each(
    store: &StoreArgs,
    keys: &[Key],
    action: impl Fn(&Key) -> Action,
    (done, good): (&str, &Outcome),
    json: bool,
) -> Result<()> {
    let outcomes = store.with(|session| session.batch(keys.iter().map(action).collect()))?;
    let (mut reached, mut missing) = (Vec::new(), Vec::new());
    for (key, (outcome, _)) in keys.iter().zip(outcomes) {
        let list = if outcome == *good { &mut reached } else { &mut missing };
        list.push(key.to_string());
    }
    output::report(json, || json!({ done: reached, "missing": missing }), String::new)?;
    if missing.is_empty() { Ok(()) } else { Err(store.no_objects(&missing)) }
}
