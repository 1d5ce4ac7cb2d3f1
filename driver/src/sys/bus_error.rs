//! Copies to and from a mapped file that survive what the file cannot deliver.
//!
//! A page that the file does not have any more (it was cut short), cannot have (the disk is full) or cannot read raises
//! SIGBUS at the instruction that touches it. [`copy`] is one known stretch of instructions; the handler sends a bus
//! error there to its end, and the copy says that it is not whole. A bus error in memory that `fragile.rs` guards is
//! contained there. Any other goes where it went before.
#![allow(unsafe_code)]

use std::io;
use std::mem::MaybeUninit;
use std::ptr::NonNull;
use std::sync::{Mutex, OnceLock, PoisonError};

// In: where to, where from, how many bytes. Out: how many bytes are left.
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

/// What bus errors did before, once the handler is in place.
static BEFORE: OnceLock<Before> = OnceLock::new();

struct Before(libc::sigaction);

// SAFETY: only numbers and a function's address, which never change.
unsafe impl Send for Before {}
// SAFETY: as above.
unsafe impl Sync for Before {}

/// Whether the handler is in place. Whoever comes second waits until it is: its copies need it.
static CATCHES: Mutex<bool> = Mutex::new(false);

/// Puts the handler in place, once for the process; it is there when this returns.
///
/// # Errors
/// What the system says.
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

/// Copies `len` bytes; false where a bus error stopped it on the way. [`catch`] was called.
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

/// Where the access failed; `None` for a signal that a process sent.
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

/// Has a bus error do what it did before.
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
