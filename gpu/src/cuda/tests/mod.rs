//! The wrappers with the emulated driver.
