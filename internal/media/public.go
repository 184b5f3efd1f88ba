package media

import "net/netip"

// reserved are the blocks of IANA's special-purpose registries that net/netip has no method for.
var reserved = prefixes(
	"0.0.0.0/8",       // this network
	"100.64.0.0/10",   // carrier-grade NAT
	"192.0.0.0/24",    // protocol assignments
	"192.0.2.0/24",    // documentation
	"192.88.99.0/24",  // 6to4 relays
	"198.18.0.0/15",   // benchmarks
	"198.51.100.0/24", // documentation
	"203.0.113.0/24",  // documentation
	"240.0.0.0/4",     // reserved and broadcast
	"2001::/23",       // protocol assignments, including Teredo
	"2001:db8::/32",   // documentation
	"3fff::/20",       // documentation
)

var (
	global = netip.MustParsePrefix("2000::/3") // global unicast
	nat64  = netip.MustParsePrefix("64:ff9b::/96")
	sixTo4 = netip.MustParsePrefix("2002::/16")
)

func prefixes(list ...string) (all []netip.Prefix) {
	for _, s := range list {
		all = append(all, netip.MustParsePrefix(s))
	}
	return all
}

// public reports whether an address belongs to a host in the public network. If an IPv6 address
// embeds an IPv4 address, that address must be public.
func public(a netip.Addr) bool {
	if a.Is6() && !a.Is4In6() {
		b := a.As16()
		switch {
		case nat64.Contains(a):
			return public(netip.AddrFrom4([4]byte(b[12:])))
		case sixTo4.Contains(a):
			return public(netip.AddrFrom4([4]byte(b[2:6])))
		case !global.Contains(a):
			return false
		}
	}
	a = a.Unmap()
	if !a.IsGlobalUnicast() || a.IsPrivate() {
		return false
	}
	for _, p := range reserved {
		if p.Contains(a) {
			return false
		}
	}
	return true
}
