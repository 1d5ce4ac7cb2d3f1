//! The store's handle, on a software controller and on a file through the kernel.

mod basics;
mod changes;
mod checked;
mod cores;
mod damage;
mod dead;
mod devices;
mod executor;
mod foreign;
mod keys;
mod layers;
mod lent;
mod limits;
mod locked_memory;
mod metrics;
mod placement;
mod plans;
mod pressure;
mod protected;
mod restart;
mod rig;
mod sized;
mod space;
mod stored_image;
mod streams;
mod tenants;
mod tier;

/// Runs the tests `$test(&Rig)` of a module on each path.
#[macro_export]
macro_rules! on_each_path {
    ($($test:ident),* $(,)?) => {
        mod soft {
            $(#[test] fn $test() { super::$test(&$crate::rig::Rig::soft()); })*
        }
        mod uring {
            $(#[test] fn $test() { super::$test(&$crate::rig::Rig::file()); })*
        }
    };
}
