//! Copies to and from a mapped file that survive pages the file cannot deliver.
//!
//! A page that the file no longer has (truncated), cannot have (full disk) or cannot read raises SIGBUS at the
//! accessing instruction. [`copy`] is a known range of instructions; on a bus error there, the handler jumps to its
//! end, and the copy reports that it is incomplete. Bus errors in memory that `fragile.rs` guards are contained there.
//! All others go to the previous handler.
#![allow(unsafe_code)]

use std::io;
use std::mem::MaybeUninit;
use std::ptr::NonNull;
use std::sync::{Mutex, OnceLock, PoisonError};

// In: destination, source, number of bytes. Out: number of bytes left.
#[cfg(target_arch = "x86_64")]
std::arch::global_asm!(
    ".hidden adit_copy",
    ".hidden adit_copy_first",
    ".hidden adit_copy_stop",
    ".globl adit_copy",
    ".globl adit_copy_first",
    ".globl adit_copy_stop",
    "adit_copy:",
    "mov rcx, rdx",
    "adit_copy_first:",
    "rep movsb",
    "adit_copy_stop:",
    "mov rax, rcx",
    "ret",
);

#[cfg(target_arch = "aarch64")]
std::arch::global_asm!(
    ".hidden adit_copy",
    ".hidden adit_copy_first",
    ".hidden adit_copy_stop",
    ".globl adit_copy",
    ".globl adit_copy_first",
    ".globl adit_copy_stop",
    "adit_copy:",
    "adit_copy_first:",
    "cmp x2, #16",
    "b.lo 2f",
    "1: ldp x3, x4, [x1]",
    "stp x3, x4, [x0]",
    "add x1, x1, #16",
    "add x0, x0, #16",
    "sub x2, x2, #16",
    "cmp x2, #16",
    "b.hs 1b",
    "2: cbz x2, adit_copy_stop",
    "ldrb w3, [x1]",
    "strb w3, [x0]",
    "add x1, x1, #1",
    "add x0, x0, #1",
    "sub x2, x2, #1",
    "b 2b",
    "adit_copy_stop:",
    "mov x0, x2",
    "ret",
);

// SAFETY: as defined above; `adit_copy` touches the `len` bytes at both pointers and no others.
unsafe extern "C" {
    fn adit_copy(to: *mut u8, from: *const u8, len: usize) -> usize;
    static adit_copy_first: u8;
    static adit_copy_stop: u8;
}

/// The previous action for SIGBUS, once the handler is installed.
static BEFORE: OnceLock<Before> = OnceLock::new();

struct Before(libc::sigaction);

// SAFETY: only numbers and a function's address, which never change.
unsafe impl Send for Before {}
// SAFETY: as above.
unsafe impl Sync for Before {}

/// Whether the handler is installed. A second caller waits for that, since its copies need the handler.
static CATCHES: Mutex<bool> = Mutex::new(false);

/// Installs the handler, once per process; it is in place on return.
///
/// # Errors
/// The system's error.
pub(crate) fn catch() -> io::Result<()> {
    let mut catches = CATCHES.lock().unwrap_or_else(PoisonError::into_inner);
    if *catches {
        return Ok(());
    }
    let mut before = MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: asks for the present action, for which there is room.
    checked(unsafe { libc::sigaction(libc::SIGBUS, std::ptr::null(), before.as_mut_ptr()) })?;
    // SAFETY: all zeros are a valid action, and the call wrote one. The handler finds it from its first call on.
    BEFORE.get_or_init(|| Before(unsafe { before.assume_init() }));
    // SAFETY: all zeros are a valid action.
    let mut action: libc::sigaction = unsafe { MaybeUninit::zeroed().assume_init() };
    let handler: extern "C" fn(i32, *mut libc::siginfo_t, *mut libc::c_void) = on_bus_error;
    action.sa_sigaction = handler as usize;
    action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
    // SAFETY: the handler only looks at its arguments and at what never changes again.
    checked(unsafe { libc::sigaction(libc::SIGBUS, &raw const action, std::ptr::null_mut()) })?;
    *catches = true;
    Ok(())
}

/// Copies `len` bytes; returns false if a bus error stopped it. Call [`catch`] first.
///
/// # Safety
/// Both runs are mapped for `len` bytes, `from` to be read and `to` to be written, and do not overlap. No reference to
/// the bytes of either is used during the call.
#[must_use]
pub(crate) unsafe fn copy(from: NonNull<u8>, to: NonNull<u8>, len: usize) -> bool {
    // SAFETY: passed on to our caller.
    unsafe { adit_copy(to.as_ptr(), from.as_ptr(), len) == 0 }
}

extern "C" fn on_bus_error(signal: i32, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    #[cfg(feature = "serve")]
    if fault_address(info).is_some_and(super::fragile::contain) {
        return;
    }
    // SAFETY: the kernel hands a handler the interrupted thread's context, which is the handler's until it returns.
    let at = unsafe { program_counter(&mut *context.cast::<libc::ucontext_t>()) };
    let (first, stop) = ((&raw const adit_copy_first).addr(), (&raw const adit_copy_stop).addr());
    if (first..stop).contains(&(*at as usize)) {
        *at = stop as _;
        return;
    }
    pass_on(signal, info, context);
}

/// Returns the address of the failed access; `None` for a signal that a process sent.
#[cfg(feature = "serve")]
fn fault_address(info: *const libc::siginfo_t) -> Option<usize> {
    // SAFETY: the kernel hands a handler what the signal is about; its own codes are positive and bring an address.
    unsafe { ((*info).si_code > 0).then(|| (*info).si_addr().addr()) }
}

#[cfg(target_arch = "x86_64")]
fn program_counter(context: &mut libc::ucontext_t) -> &mut libc::greg_t {
    &mut context.uc_mcontext.gregs[libc::REG_RIP as usize]
}

#[cfg(target_arch = "aarch64")]
fn program_counter(context: &mut libc::ucontext_t) -> &mut libc::c_ulonglong {
    &mut context.uc_mcontext.pc
}

/// Invokes the previous action for a bus error.
fn pass_on(signal: i32, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    let Some(Before(before)) = BEFORE.get() else { return };
    match before.sa_sigaction {
        libc::SIG_DFL | libc::SIG_IGN => {
            // SAFETY: restores an action that was in place; the instruction is repeated and meets it.
            unsafe { libc::sigaction(signal, before, std::ptr::null_mut()) };
        }
        handler if before.sa_flags & libc::SA_SIGINFO != 0 => {
            type Handler = extern "C" fn(i32, *mut libc::siginfo_t, *mut libc::c_void);
            // SAFETY: with this flag the address is that of a function of this kind.
            unsafe { std::mem::transmute::<usize, Handler>(handler)(signal, info, context) };
        }
        handler => {
            // SAFETY: without the flag the address is that of a function of this kind.
            unsafe { std::mem::transmute::<usize, extern "C" fn(i32)>(handler)(signal) };
        }
    }
}

fn checked(result: libc::c_int) -> io::Result<()> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
