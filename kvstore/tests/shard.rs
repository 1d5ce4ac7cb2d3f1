//! A shard on the driver's devices: the same test bodies on every path.
#![forbid(unsafe_code)]

#[path = "shard/bodies.rs"]
mod bodies;
#[path = "shard/rig.rs"]
mod rig;

/// Turns each body into a test on each path.
macro_rules! on_each_path {
    ($($body:ident),+ $(,)?) => {
        mod soft {
            $(#[test] fn $body() { crate::bodies::$body(&crate::rig::Rig::soft(1)); })+
        }
        mod two_soft {
            $(#[test] fn $body() { crate::bodies::$body(&crate::rig::Rig::soft(2)); })+
        }
        // With real drives: ADIT_TARGETS=vfio:0000:01:00.0 shard --ignored --test-threads=1 named::
        mod named {
            $(#[test]
            #[ignore = "needs drives that ADIT_TARGETS names"]
            fn $body() { crate::bodies::$body(&crate::rig::Rig::named()); })+
        }
        mod uring {
            $(#[test] fn $body() { crate::bodies::$body(&crate::rig::Rig::uring(1)); })+
        }
    };
}

on_each_path!(
    what_is_put_is_read_until_it_is_deleted,
    parts_and_batches_are_answered_item_by_item,
    what_is_written_in_parts_is_an_object_once_it_is_sealed,
    a_full_store_evicts_and_leased_objects_stay,
    what_was_committed_is_there_after_the_store_is_opened_again,
    what_is_durable_is_there_without_a_commit,
    a_volatile_store_is_empty_when_it_is_opened_again,
    garbage_over_an_object_is_a_miss_that_is_counted,
    an_object_comes_back_if_a_cut_took_the_data_of_what_replaced_it,
    checkpoints_are_taken_while_objects_are_put,
    a_store_that_is_none_is_not_opened,
);
