# Kills `adit setup bind` and `adit setup unbind` before each system call with which they change the machine, and sees
# that `adit setup restore` brings everything back each time.
#
# A first, whole run under strace tells which calls those are; strace then holds a run of its own at each, for long enough
# to kill it. (It could kill by itself, but not with --seccomp-bpf, which makes it quick.) It counts calls by thread: those
# of the main thread are told by their number, those of others (writes to sysfs) by their file.

device=0000:00:18.0
calls=?write,?pwrite64,?mkdir,?rename,?renameat,?renameat2,?unlink,?unlinkat,?symlink,?fchmod,?chmod,?fchmodat,?chown,?fchown,?fchownat,?lchown
watch="strace --seccomp-bpf -f -qqq -e signal=none"

machine() {
	basename "$(readlink /sys/bus/pci/devices/$device/driver)"
	cat /sys/bus/pci/devices/$device/driver_override
	ls $BLOCK_0 2>&1
	find /var/lib/adit /run/udev /etc/security /etc/tmpfiles.d /etc/systemd ! -type d 2>/dev/null
}

# Prints the places at which to kill "$@": `CALL NUMBER` of the main thread, or `write PATH`.
places() {
	$watch -y -e trace=$calls -o /tmp/trace "$@" >/tmp/said 2>&1 || { cat /tmp/said; exit 1; }
	awk '
		NR == 1 { main = $1 }
		{
			call = $2
			sub(/\(.*/, "", call)
			number = ++count[$1, call]
			# A call that failed changed nothing.
			if (/ = -1 / || !match($0, /[<"]\/(sys|var|etc|run\/udev|dev\/vfio)[^>"]*/))
				next
			print call, ($1 == main ? number : substr($0, RSTART + 1, RLENGTH - 1))
		}' /tmp/trace
}

# Runs the rest of the words, killed at the place that the first two tell.
killed_at() {
	call=$1 place=$2
	shift 2
	case $place in
	/*) at="when=1 -P $place" ;;
	*) at="when=$place" ;;
	esac
	: >/tmp/held
	$watch -o /tmp/held -e trace=$call -e inject=$call:delay_enter=60s:$at "$@" >/tmp/said 2>&1 &
	# A call that is held is a line without an end.
	while [ ! -s /tmp/held ] || [ "$(tail -c 1 /tmp/held | wc -l)" = 1 ]; do
		kill -0 $! 2>/dev/null || { echo "did not come to $call $place:"; cat /tmp/held /tmp/said; exit 1; }
		usleep 20000
	done
	killall -9 adit
	# It would wait for the end of the time for which it was to hold the call.
	kill -9 $!
	wait $! 2>/dev/null
	while pidof adit >/dev/null; do usleep 20000; done
}

# Restores what was killed at "$@", and compares.
restored() {
	machine >/tmp/cut
	adit setup restore >/tmp/said 2>&1 || { echo "killed at $*, it is not restored:"; cat /tmp/cut /tmp/said; exit 1; }
	machine >/tmp/after
	if cmp /tmp/before /tmp/after; then
		# So that making directories is a step of each run.
		rm -rf /var/lib/adit /run/udev /etc/security
		return
	fi
	echo "killed at $*, it is not as it was before:"
	cat /tmp/cut /tmp/said /tmp/after
	exit 1
}

bind="adit setup bind $device --user user"
machine >/tmp/before
mkdir -p /usr/sbin
printf '#!/bin/sh\nkill -9 $PPID\n' >/usr/sbin/modprobe
chmod +x /usr/sbin/modprobe
$bind >/tmp/said 2>&1
[ $? = 137 ] || { echo "was not killed while modprobe runs:"; cat /tmp/said; exit 1; }
rm /usr/sbin/modprobe
restored modprobe
modprobe vfio-pci || exit

places $bind >/tmp/bind || exit
restored nowhere
while read -r call place; do
	killed_at $call $place $bind
	restored $call $place
done </tmp/bind

$bind >/dev/null || exit
places adit setup unbind $device >/tmp/unbind || exit
while read -r call place; do
	$bind >/dev/null || exit
	killed_at $call $place adit setup unbind $device
	restored $call $place
done </tmp/unbind
# Not killed at all, it does what it should: what was compared can differ.
$bind >/dev/null || exit
machine >/tmp/bound
cmp -s /tmp/before /tmp/bound && exit 1
adit setup unbind $device >/dev/null || exit
machine | cmp - /tmp/before || exit
echo "bind was killed at $(($(wc -l </tmp/bind) + 1)) steps, unbind at $(wc -l </tmp/unbind)"
