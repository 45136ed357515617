// A virtual network for the app, the consumer and the private endpoints. Each of the first two has a subnet of its own,
// which is delegated to the platform that runs it and holds nothing else.

@description('Name of the virtual network.')
param name string

@description('Region.')
param location string

@description('Tags of all resources.')
param tags object

@description('Address range, a /24 or larger.')
param addressPrefix string

@description('What the subnet of the app is delegated to, by the kind of its plan.')
param appDelegation string

var size = int(split(addressPrefix, '/')[1]) + 2

resource network 'Microsoft.Network/virtualNetworks@2024-05-01' = {
  name: name
  location: location
  tags: tags
  properties: {
    addressSpace: {
      addressPrefixes: [
        addressPrefix
      ]
    }
    // Written here and not as resources of their own, which a second deployment of the network would delete.
    subnets: [
      {
        name: 'app'
        properties: {
          addressPrefix: cidrSubnet(addressPrefix, size, 0)
          delegations: [
            {
              name: 'app'
              properties: {
                serviceName: appDelegation
              }
            }
          ]
        }
      }
      {
        name: 'consumer'
        properties: {
          addressPrefix: cidrSubnet(addressPrefix, size, 1)
          delegations: [
            {
              name: 'consumer'
              properties: {
                serviceName: 'Microsoft.App/environments'
              }
            }
          ]
        }
      }
      {
        name: 'endpoints'
        properties: {
          addressPrefix: cidrSubnet(addressPrefix, size, 2)
        }
      }
    ]
  }
}
